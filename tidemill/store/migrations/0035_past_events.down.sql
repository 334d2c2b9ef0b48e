ALTER TABLE tidemill.monitor_event DROP COLUMN past;
ALTER TABLE tidemill.monitor DROP COLUMN started_at;
