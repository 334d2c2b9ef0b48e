DROP TABLE result;
