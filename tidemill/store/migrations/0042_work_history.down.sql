DROP TABLE tidemill.work_history;
