DELETE FROM tidemill.schedule WHERE run IS NOT NULL OR made_by IS NOT NULL;
ALTER TABLE tidemill.schedule
    DROP COLUMN run, DROP COLUMN last_run_id, DROP COLUMN made_by, DROP COLUMN overlap, DROP COLUMN overlapped,
    DROP COLUMN overlapped_at;
