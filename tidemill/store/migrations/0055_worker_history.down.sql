DELETE FROM tidemill.work_history WHERE kind = 'worker';
ALTER TABLE tidemill.work_history DROP CONSTRAINT work_history_kind_check,
    ADD CONSTRAINT work_history_kind_check CHECK (kind IN ('task', 'queue', 'host'));
