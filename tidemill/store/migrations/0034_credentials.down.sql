DROP TABLE tidemill.credential;
