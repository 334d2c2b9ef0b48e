ALTER TABLE tidemill.published DROP COLUMN tick;
