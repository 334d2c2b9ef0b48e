-- What run workers know of the versions of workflows: a later version reads the runs of an earlier one by it.
CREATE TABLE tidemill.flow_version (
    kind       text COLLATE "C" NOT NULL,
    version    text COLLATE "C" NOT NULL,
    definition json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, version)
);

-- The signatures of the tasks that a worker has, and those that did not know an argument of a job: such a job waits for
-- a worker with another one.
ALTER TABLE tidemill.worker ADD COLUMN signatures text[];
ALTER TABLE tidemill.job ADD COLUMN refused_by text[];
