-- needs_at_least: 49
-- The process that has started this one for suspects. When it ends, this one ends with it, and its work is not to blame.
ALTER TABLE tidemill.worker ADD COLUMN parent_pid integer;
