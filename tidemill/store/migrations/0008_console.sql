-- For the console: what tasks logged, how much was done over time, and what operators have set.

-- The last lines that each attempt at a job logged, by the day on which the attempt began. Nothing relies on it.
CREATE TABLE tidemill.job_log (
    job_id   bigint NOT NULL,
    attempt  integer NOT NULL,
    began_at timestamptz NOT NULL,
    dropped  integer NOT NULL, -- lines that came before these and were not kept
    lines    json NOT NULL,
    PRIMARY KEY (job_id, attempt, began_at)
) PARTITION BY RANGE (began_at);
CREATE TABLE tidemill.job_log_default PARTITION OF tidemill.job_log DEFAULT;

-- The totals of `meter` as they were every few seconds, for a day: attempts that ended well or not, and per queue how
-- many jobs had waited no longer than each bound. The difference of two rows is what happened in between.
CREATE TABLE tidemill.pace (
    at     timestamptz PRIMARY KEY,
    done   double precision NOT NULL,
    failed double precision NOT NULL,
    waits  json NOT NULL
);

-- What operators have set for everybody, in the place of what processes were started with.
CREATE TABLE tidemill.setting (
    name  text COLLATE "C" PRIMARY KEY,
    value json NOT NULL,
    by    text NOT NULL,
    at    timestamptz NOT NULL DEFAULT now()
);
