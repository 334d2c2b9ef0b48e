-- Telemetry: what hosts use, and what was done. Nothing else relies on these tables.

-- One row per host: which of its processes samples it, and when it last did. The newest sample is in host_sample.
CREATE TABLE tidemill.host (
    name    text COLLATE "C" PRIMARY KEY,
    sampler text COLLATE "C" NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- A sample every few seconds. Whoever writes one removes what is older than a day.
CREATE TABLE tidemill.host_sample (
    host text COLLATE "C" NOT NULL,
    at   timestamptz NOT NULL,
    data json NOT NULL,
    PRIMARY KEY (host, at)
);

-- What a process says of itself: the lag of its event loop, the models that it holds.
CREATE TABLE tidemill.process (
    host    text COLLATE "C" NOT NULL,
    pid     integer NOT NULL,
    role    text COLLATE "C" NOT NULL,
    seen_at timestamptz NOT NULL DEFAULT now(),
    gauges  json NOT NULL,
    PRIMARY KEY (host, pid, role)
) WITH (fillfactor = 50);

-- Totals of everything that is counted, over all processes and their restarts. `labels` is a JSON array.
CREATE TABLE tidemill.meter (
    name   text COLLATE "C" NOT NULL,
    labels text COLLATE "C" NOT NULL,
    value  double precision NOT NULL,
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, labels)
) WITH (fillfactor = 50);
