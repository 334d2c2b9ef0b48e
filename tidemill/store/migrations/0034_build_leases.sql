-- A build's row is the lease of its state: one builder at a time builds it, in any process. It holds while its job runs,
-- or while the session that has taken its lock is open and says so.
TRUNCATE tidemill.state_building;
ALTER TABLE tidemill.state_building ADD COLUMN lock bigint, ADD COLUMN job bigint;
ALTER TABLE tidemill.state_building ALTER COLUMN began_at SET DEFAULT now();
CREATE INDEX state_building_lock ON tidemill.state_building (lock);
