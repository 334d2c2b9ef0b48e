ALTER TABLE tidemill.monitor DROP COLUMN lateness_by_minute;
