-- What was done in each half hour, by task, queue and host: attempts that ended, how long they took and had waited.
CREATE TABLE tidemill.work_history (
    at      timestamptz NOT NULL, -- the beginning of the half hour
    kind    text COLLATE "C" NOT NULL CHECK (kind IN ('task', 'queue', 'host')),
    name    text COLLATE "C" NOT NULL,
    ended   bigint NOT NULL,
    failed  bigint NOT NULL, -- those among them that raised an error, retried or not
    seconds double precision NOT NULL,
    ran     integer[] NOT NULL, -- histograms: how many took, or had waited, up to each bound
    waited  integer[] NOT NULL,
    PRIMARY KEY (kind, name, at)
) WITH (fillfactor = 70);
CREATE INDEX work_history_age ON tidemill.work_history (at);
