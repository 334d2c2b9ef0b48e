-- Schedules that start runs, schedules that were made at run time, and what a fire does while the one before is unfinished.
ALTER TABLE tidemill.schedule
    ADD COLUMN run json,
    ADD COLUMN last_run_id bigint,
    ADD COLUMN made_by text,
    ADD COLUMN overlap text NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip')),
    ADD COLUMN overlapped bigint NOT NULL DEFAULT 0,
    ADD COLUMN overlapped_at timestamptz;
