ALTER TABLE tidemill.run DROP COLUMN buffered;
