DROP INDEX tidemill.run_start;
UPDATE tidemill.run SET awake = true WHERE start_at IS NOT NULL;
ALTER TABLE tidemill.run DROP COLUMN start_at, DROP COLUMN tags;
