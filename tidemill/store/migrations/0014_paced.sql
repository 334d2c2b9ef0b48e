-- Backfills with a pace: states that are not marked yet, in the order in which they will be.

ALTER TABLE tidemill.state_backfill
    ADD COLUMN rate     double precision, -- states a second; NULL if all are marked at once
    ADD COLUMN paced_at timestamptz;      -- up to when states have been marked
CREATE TABLE tidemill.state_waiting (
    backfill bigint NOT NULL REFERENCES tidemill.state_backfill ON DELETE CASCADE,
    place    bigint NOT NULL,
    stage    text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL,
    PRIMARY KEY (backfill, place)
);
