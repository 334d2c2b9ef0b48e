ALTER TABLE tidemill.worker DROP COLUMN held;
