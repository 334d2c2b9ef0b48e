-- A source that one process at a time may read: others take its cursor over when the lease has ended.
ALTER TABLE tidemill.source_cursor ADD COLUMN held_until timestamptz;
