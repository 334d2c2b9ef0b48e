DROP TABLE content_result;
