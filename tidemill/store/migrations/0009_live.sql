-- Backfills of states, and changes of states, streams and monitors for live pages.

-- Many states that somebody wants to be built again. They are marked as invalid by `mark`; those that were built have
-- lost it.
CREATE TABLE tidemill.state_backfill (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline   text COLLATE "C" NOT NULL,
    stage      text COLLATE "C" NOT NULL,
    first      text,
    last       text,
    downstream boolean NOT NULL,
    by         text NOT NULL,
    total      bigint NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    stopped_at timestamptz,
    stopped_by text,
    mark       text COLLATE "C" NOT NULL GENERATED ALWAYS AS (by || ', backfill ' || id::text) STORED
);
CREATE INDEX state_backfill_pipeline ON tidemill.state_backfill (pipeline, id);
CREATE INDEX state_invalid ON tidemill.state (pipeline, invalid_by) WHERE invalid_by IS NOT NULL;

-- For triggers on columns, which are not told what has changed.
CREATE FUNCTION tidemill.note_plainly() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tidemill.is_followed() THEN
        PERFORM tidemill.note_change(TG_ARGV[0], '{}');
    END IF;
    RETURN NULL;
END $$;

-- For monitors: that one looked at its source again and told how it went is no change.
CREATE FUNCTION tidemill.note_monitors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF tidemill.is_followed() AND EXISTS (
        SELECT FROM changed JOIN before USING (name)
        WHERE (changed.paused, changed.off, changed.status ->> 'health', changed.status ->> 'failures')
              IS DISTINCT FROM (before.paused, before.off, before.status ->> 'health', before.status ->> 'failures'))
    THEN
        PERFORM tidemill.note_change('monitors', '{}');
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER change_wish AFTER UPDATE OF invalid_by, code ON tidemill.state
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_plainly('pipelines');
CREATE TRIGGER change_update AFTER UPDATE ON tidemill.monitor REFERENCING OLD TABLE AS before NEW TABLE AS changed
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_monitors();
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT * FROM (VALUES
        ('state', 'pipelines', 'DELETE'), ('state_build', 'pipelines', 'INSERT'),
        ('state_failure', 'pipelines', 'DELETE'), ('state_control', 'pipelines', 'INSERT'),
        ('state_control', 'pipelines', 'UPDATE'), ('state_backfill', 'pipelines', 'UPDATE'),
        ('stream_status', 'streams', 'INSERT'), ('stream_status', 'streams', 'UPDATE'),
        ('stream_status', 'streams', 'DELETE'), ('stream_control', 'streams', 'INSERT'),
        ('stream_control', 'streams', 'UPDATE'), ('dead_letter', 'dead', 'INSERT'), ('dead_letter', 'dead', 'DELETE'),
        ('monitor', 'monitors', 'INSERT'), ('monitor_tick', 'monitors', 'INSERT'),
        ('monitor_problem', 'monitors', 'INSERT'), ('monitor_problem', 'monitors', 'UPDATE'),
        ('alert', 'alerts', 'INSERT'), ('alert', 'alerts', 'UPDATE')) AS each (tab, kind, event)
    LOOP
        EXECUTE format(
            'CREATE TRIGGER change_%s AFTER %s ON tidemill.%I REFERENCING %s TABLE AS changed '
            'FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind(%L)',
            lower(one.event), one.event, one.tab, CASE WHEN one.event = 'DELETE' THEN 'OLD' ELSE 'NEW' END, one.kind);
    END LOOP;
END $$;
