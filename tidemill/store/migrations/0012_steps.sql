-- For people who look on: states that a pipeline's own process builds just now, and what steps of runs logged.

-- Builds without a job that have taken a moment already. Whoever builds them says so again and again: one of which
-- nothing was heard lately has ended with its process. Nothing relies on it.
CREATE UNLOGGED TABLE tidemill.state_mark (
    pipeline text COLLATE "C" NOT NULL,
    stage    text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL,
    builder  text NOT NULL,
    began_at timestamptz NOT NULL,
    seen_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, stage, entity)
) WITH (fillfactor = 50);
CREATE TRIGGER change_insert AFTER INSERT ON tidemill.state_mark REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind('pipelines');
CREATE TRIGGER change_delete AFTER DELETE ON tidemill.state_mark REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind('pipelines');

-- The last lines that each attempt at a step logged which ran where its run was, by the day on which it began. Nothing
-- relies on it.
CREATE TABLE tidemill.run_log (
    run_id   bigint NOT NULL,
    work     bigint NOT NULL,
    step     text COLLATE "C" NOT NULL,
    attempt  integer NOT NULL,
    began_at timestamptz NOT NULL,
    dropped  integer NOT NULL, -- lines that came before these and were not kept
    lines    json NOT NULL,
    PRIMARY KEY (run_id, work, attempt, began_at)
) PARTITION BY RANGE (began_at);
CREATE TABLE tidemill.run_log_default PARTITION OF tidemill.run_log DEFAULT;
