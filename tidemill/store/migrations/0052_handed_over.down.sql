DROP TABLE tidemill.stream_handed_over;
