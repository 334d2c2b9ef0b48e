-- needs_at_least: 49
-- The trace that an event of a monitor came with: alerts continue it.
ALTER TABLE tidemill.monitor_event ADD COLUMN trace text;
