DROP INDEX IF EXISTS tidemill.event_log_follows, tidemill.run_follows, tidemill.job_history_follows, tidemill.job_follows;
DROP TABLE tidemill.state_origin;
ALTER TABLE tidemill.stream_handed_over DROP COLUMN origin;
ALTER TABLE tidemill.monitor_event DROP COLUMN origin;
ALTER TABLE tidemill.event_log DROP COLUMN origins;
