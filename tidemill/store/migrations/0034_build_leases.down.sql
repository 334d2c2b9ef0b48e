DROP INDEX tidemill.state_building_lock;
TRUNCATE tidemill.state_building;
ALTER TABLE tidemill.state_building ALTER COLUMN began_at DROP DEFAULT;
ALTER TABLE tidemill.state_building DROP COLUMN lock, DROP COLUMN job;
