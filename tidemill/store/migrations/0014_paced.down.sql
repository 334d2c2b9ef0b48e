DROP TABLE tidemill.state_waiting;
ALTER TABLE tidemill.state_backfill DROP COLUMN rate, DROP COLUMN paced_at;
