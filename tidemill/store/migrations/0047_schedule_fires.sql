-- What became of each fire of a schedule, and fires that wait for the one before.
ALTER TABLE tidemill.schedule DROP CONSTRAINT schedule_overlap_check;
ALTER TABLE tidemill.schedule
    ADD CONSTRAINT schedule_overlap_check CHECK (overlap IN ('allow', 'skip', 'queue', 'cancel')),
    ADD COLUMN waiting json NOT NULL DEFAULT '[]',
    ADD COLUMN check_at timestamptz;

CREATE TABLE tidemill.schedule_fire (
    schedule text NOT NULL REFERENCES tidemill.schedule (name) ON DELETE CASCADE,
    id       bigint GENERATED ALWAYS AS IDENTITY,
    fire     timestamptz NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    outcome  text NOT NULL CHECK (outcome IN ('started', 'waiting', 'skipped', 'missed', 'failed')),
    reason   text NOT NULL,
    note     text,
    job_id   bigint,
    run_id   bigint,
    PRIMARY KEY (schedule, id)
);
