ALTER TABLE tidemill.source_cursor DROP COLUMN held_until;
