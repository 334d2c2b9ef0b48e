DROP TABLE tidemill.monitor_wish;
