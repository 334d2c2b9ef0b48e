DROP TABLE tidemill.run_log;
DROP TABLE tidemill.state_mark;
