ALTER TABLE tidemill.monitor_event DROP COLUMN trace;
