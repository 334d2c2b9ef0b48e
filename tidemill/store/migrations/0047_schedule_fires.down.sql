DROP TABLE tidemill.schedule_fire;
UPDATE tidemill.schedule SET overlap = 'skip' WHERE overlap NOT IN ('allow', 'skip');
ALTER TABLE tidemill.schedule DROP CONSTRAINT schedule_overlap_check;
ALTER TABLE tidemill.schedule
    ADD CONSTRAINT schedule_overlap_check CHECK (overlap IN ('allow', 'skip')),
    DROP COLUMN waiting,
    DROP COLUMN check_at;
