-- The server: what has changed, for live pages; who may come in; answers kept for repeated requests; listings.

-- What has changed, coarsely: one row per statement, with the queues or runs that it touched. Not worth a log of its
-- own: when the database crashes it is empty, and whoever followed it looks at everything anew.
CREATE UNLOGGED TABLE tidemill.change (
    xid  xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    what text COLLATE "C" NOT NULL,
    keys text[] NOT NULL DEFAULT '{}'
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX change_order ON tidemill.change (xid);

-- Which log this is, and up to which transaction it may have gaps: one row, or none after a crash.
CREATE UNLOGGED TABLE tidemill.change_log (
    epoch text NOT NULL,
    gone  bigint NOT NULL
);

-- Two numbers that everybody reads and hardly anybody writes, outside of transactions: until when (seconds) changes
-- are noted, since somebody follows them; and when (milliseconds) the bell was last rung for them.
CREATE UNLOGGED SEQUENCE tidemill.change_until;
CREATE UNLOGGED SEQUENCE tidemill.change_rung;

-- Note a change. The bell is rung at most every 50 ms; who hears it looks again a little later.
CREATE FUNCTION tidemill.note_change(changed_what text, changed_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    INSERT INTO tidemill.change (what, keys) VALUES (changed_what, changed_keys);
    IF (SELECT last_value FROM tidemill.change_rung) < ms - 50 THEN
        PERFORM setval('tidemill.change_rung', ms);
        PERFORM pg_notify('tidemill_changes', '');
    END IF;
END $$;

CREATE FUNCTION tidemill.is_followed() RETURNS boolean LANGUAGE sql AS $$
    SELECT last_value >= extract(epoch FROM clock_timestamp()) FROM tidemill.change_until
$$;

-- Follow the changes for so many seconds from now on. If nobody did until now, some have not been noted: then this is
-- a new log, and all up to transaction `gone` may be missing from it.
CREATE FUNCTION tidemill.follow_changes(seconds float8, OUT log_epoch text, OUT log_gone bigint)
LANGUAGE plpgsql AS $$
DECLARE
    lapsed boolean;
BEGIN
    LOCK TABLE tidemill.change_log IN SHARE ROW EXCLUSIVE MODE;
    lapsed := NOT tidemill.is_followed();
    PERFORM setval('tidemill.change_until', ceil(extract(epoch FROM clock_timestamp()) + seconds)::bigint);
    IF lapsed OR NOT EXISTS (SELECT FROM tidemill.change_log) THEN
        DELETE FROM tidemill.change_log;
        INSERT INTO tidemill.change_log VALUES (
            replace(gen_random_uuid()::text, '-', ''), pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1);
    END IF;
    SELECT epoch, gone INTO log_epoch, log_gone FROM tidemill.change_log;
END $$;

-- For small tables: that something of a kind has changed.
CREATE FUNCTION tidemill.note_kind() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tidemill.is_followed() AND EXISTS (SELECT FROM changed) THEN
        PERFORM tidemill.note_change(TG_ARGV[0], '{}');
    END IF;
    RETURN NULL;
END $$;

-- For limits of queues: their tokens come and go with every claim, and are no change.
CREATE FUNCTION tidemill.note_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tidemill.is_followed() THEN
        PERFORM tidemill.note_change('limits', '{}');
    END IF;
    RETURN NULL;
END $$;

-- For workers: a heartbeat alone is no change.
CREATE FUNCTION tidemill.note_workers() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tidemill.is_followed() AND EXISTS (
        SELECT FROM changed JOIN before USING (id)
        WHERE (changed.status, changed.running, changed.models, changed.flagged_at, changed.ended_at)
              IS DISTINCT FROM (before.status, before.running, before.models, before.flagged_at, before.ended_at))
    THEN
        PERFORM tidemill.note_change('workers', '{}');
    END IF;
    RETURN NULL;
END $$;

-- For jobs: which queues.
CREATE FUNCTION tidemill.note_queues() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched text[];
BEGIN
    IF tidemill.is_followed() THEN
        touched := ARRAY(SELECT DISTINCT queue FROM changed);
        IF touched <> '{}' THEN
            PERFORM tidemill.note_change('queue', touched);
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- For runs, and what they show: which runs.
CREATE FUNCTION tidemill.note_runs() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched text[];
BEGIN
    IF tidemill.is_followed() THEN
        touched := ARRAY(SELECT id::text FROM changed);
        IF touched <> '{}' THEN
            PERFORM tidemill.note_change('run', touched);
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tidemill.note_shown() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    touched text[];
BEGIN
    IF tidemill.is_followed() THEN
        touched := ARRAY(SELECT DISTINCT run_id::text FROM changed);
        IF touched <> '{}' THEN
            PERFORM tidemill.note_change('run', touched);
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER change_insert AFTER INSERT ON tidemill.job REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_queues();
CREATE TRIGGER change_update AFTER UPDATE ON tidemill.job REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_queues();
CREATE TRIGGER change_delete AFTER DELETE ON tidemill.job REFERENCING OLD TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_queues();
CREATE TRIGGER change_insert AFTER INSERT ON tidemill.run REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_runs();
CREATE TRIGGER change_update AFTER UPDATE ON tidemill.run REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_runs();
CREATE TRIGGER change_insert AFTER INSERT ON tidemill.published REFERENCING NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_shown();
CREATE TRIGGER change_update AFTER UPDATE ON tidemill.worker REFERENCING OLD TABLE AS before NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_workers();
CREATE TRIGGER change_limits AFTER INSERT OR DELETE OR UPDATE OF rate, burst, by ON tidemill.queue
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_limits();
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM (VALUES
        ('run_input', 'inputs', 'INSERT'), ('run_input', 'inputs', 'UPDATE'), ('run_input', 'inputs', 'DELETE'),
        ('schedule', 'schedules', 'INSERT'), ('schedule', 'schedules', 'UPDATE'), ('schedule', 'schedules', 'DELETE'),
        ('worker', 'workers', 'INSERT'), ('worker', 'workers', 'DELETE'),
        ('worker_control', 'workers', 'INSERT'), ('worker_control', 'workers', 'UPDATE'),
        ('worker_control', 'workers', 'DELETE'), ('host', 'hosts', 'INSERT'), ('host', 'hosts', 'UPDATE'),
        ('audit', 'audit', 'INSERT')) AS each (tab, kind, event)
    LOOP
        EXECUTE format(
            'CREATE TRIGGER change_%s AFTER %s ON tidemill.%I REFERENCING %s TABLE AS changed '
            'FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind(%L)',
            lower(one.event), one.event, one.tab, CASE WHEN one.event = 'DELETE' THEN 'OLD' ELSE 'NEW' END, one.kind);
    END LOOP;
END $$;

-- API tokens. Only a hash is kept; `hint` are the last characters, by which people recognise theirs.
CREATE TABLE tidemill.token (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text NOT NULL,
    scope      text COLLATE "C" NOT NULL CHECK (scope IN ('read', 'operate', 'admin')),
    hash       bytea NOT NULL UNIQUE,
    hint       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    created_by text NOT NULL,
    expires_at timestamptz,
    used_at    timestamptz,
    revoked_at timestamptz,
    revoked_by text
);

-- Browsers that have logged in with a token; they may do what it may, for as long as it is good.
CREATE TABLE tidemill.session (
    hash       bytea PRIMARY KEY,
    token_id   bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
CREATE INDEX session_expires ON tidemill.session (expires_at);

-- What was answered to a request with an idempotency key; no status means that it is under way, or was cut off.
CREATE TABLE tidemill.answer (
    who     text NOT NULL,
    key     text NOT NULL,
    request bytea NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    status  smallint,
    body    bytea,
    PRIMARY KEY (who, key)
);
CREATE INDEX answer_at ON tidemill.answer (at);

-- Listings, always in the order of ids. Jobs that went wrong are few and looked for most: only they pay for more.
DROP INDEX tidemill.job_history_bad;
CREATE INDEX job_history_queue ON tidemill.job_history (queue, id);
CREATE INDEX job_history_task ON tidemill.job_history (task, id);
CREATE INDEX job_history_bad ON tidemill.job_history (state, id) WHERE state <> 'succeeded';
CREATE INDEX job_history_bad_queue ON tidemill.job_history (queue, state, id) WHERE state <> 'succeeded';
CREATE INDEX job_history_bad_task ON tidemill.job_history (task, state, id) WHERE state <> 'succeeded';
CREATE INDEX job_history_run ON tidemill.job_history (run_id, id) WHERE run_id IS NOT NULL;
CREATE INDEX job_history_key ON tidemill.job_history (unique_key) WHERE unique_key IS NOT NULL;
CREATE INDEX job_history_tags ON tidemill.job_history USING gin (tags) WHERE tags IS NOT NULL;
CREATE INDEX run_workflow ON tidemill.run (workflow, id);
CREATE INDEX run_state ON tidemill.run (state, id) WHERE state <> 'succeeded';
CREATE INDEX run_dags ON tidemill.run (id) WHERE kind = ':dag';
CREATE INDEX run_own_key ON tidemill.run (key) WHERE key IS NOT NULL AND key < '~';
