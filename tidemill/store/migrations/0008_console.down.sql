DROP TABLE tidemill.setting, tidemill.pace, tidemill.job_log;
