-- Runs that begin later, and tags to find runs by.
ALTER TABLE tidemill.run ADD COLUMN start_at timestamptz, ADD COLUMN tags text[];
CREATE INDEX run_start ON tidemill.run (start_at) WHERE start_at IS NOT NULL;
