ALTER TABLE tidemill.worker DROP COLUMN events;
