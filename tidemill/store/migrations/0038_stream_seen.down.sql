DROP TABLE tidemill.stream_seen;
