-- needs_at_least: 49
-- What was done in each half hour is counted by worker process, too.
ALTER TABLE tidemill.work_history DROP CONSTRAINT work_history_kind_check,
    ADD CONSTRAINT work_history_kind_check CHECK (kind IN ('task', 'queue', 'host', 'worker')) NOT VALID;
