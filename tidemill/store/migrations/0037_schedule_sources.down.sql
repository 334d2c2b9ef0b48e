ALTER TABLE tidemill.schedule DROP COLUMN declared_by;
