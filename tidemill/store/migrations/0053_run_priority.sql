-- needs_at_least: 49
-- The priority and the deadline of runs. `expired` is the state of a run that had not begun when its deadline passed.
ALTER TABLE tidemill.run ADD COLUMN priority smallint, ADD COLUMN deadline timestamptz;
ALTER TABLE tidemill.run DROP CONSTRAINT run_state_check;
ALTER TABLE tidemill.run ADD CONSTRAINT run_state_check
    CHECK (state IN ('running', 'needs_attention', 'succeeded', 'failed', 'cancelled', 'timed_out', 'expired'));
DROP INDEX tidemill.run_unowned;
CREATE INDEX run_unowned ON tidemill.run (kind, coalesce(priority, 5::smallint) DESC, id)
    WHERE state = 'running' AND owner IS NULL AND awake;
CREATE INDEX run_deadline ON tidemill.run (deadline) WHERE deadline IS NOT NULL AND state = 'running';

CREATE FUNCTION tidemill.start(
    name text, input jsonb DEFAULT '{}', delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, tags text[] DEFAULT NULL, priority integer DEFAULT NULL, deadline interval DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    usual json;
    kind  text;
    made  bigint;
    later timestamptz := coalesce(start.at, now() + start.delay);
BEGIN
    SELECT d.template, d.shape INTO usual, kind FROM tidemill.declared AS d
    WHERE d.shape IN ('flow', 'dag') AND d.name = start.name;
    IF usual IS NULL THEN
        RAISE EXCEPTION 'there is no workflow or dag %', start.name USING ERRCODE = 'undefined_object',
            HINT = 'They are known once a worker or the maintenance process of their application has started.';
    END IF;
    IF jsonb_typeof(start.input) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the input of % must be a JSON object', start.name USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start.at IS NOT NULL AND start.delay IS NOT NULL THEN
        RAISE EXCEPTION 'give either delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF start.priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority % is outside 0 to 9', start.priority USING ERRCODE = 'invalid_parameter_value';
    END IF;
    LOOP
        INSERT INTO tidemill.run (workflow, kind, version, key, input, origin, tags, start_at, awake, priority, deadline)
        VALUES (start.name, usual ->> 'kind', usual ->> 'version', start.unique_key,
                CASE kind WHEN 'dag' THEN json_build_object('dag', usual -> 'dag', 'args', start.input)
                          ELSE json_build_object('type', usual ->> 'type', 'value', start.input) END,
                json_build_object('by', 'SQL by ' || session_user), start.tags, later, later IS NULL,
                start.priority, now() + start.deadline)
        ON CONFLICT (workflow, key) WHERE key IS NOT NULL DO NOTHING
        RETURNING id INTO made;
        EXIT WHEN made IS NOT NULL;
        SELECT r.id INTO made FROM tidemill.run AS r WHERE r.workflow = start.name AND r.key = start.unique_key;
        IF made IS NOT NULL THEN
            RETURN made; -- the run that has the key
        END IF;
    END LOOP;
    PERFORM pg_notify('tidemill_runs', CASE WHEN later IS NULL THEN '' ELSE 'wake' END);
    RETURN made;
END $$;

COMMENT ON FUNCTION tidemill.start(text, jsonb, interval, timestamptz, text, text[], integer, interval)
    IS 'Start a run of a workflow or dag; returns its id, or that of the run with its unique key.';
REVOKE ALL ON FUNCTION tidemill.start(text, jsonb, interval, timestamptz, text, text[], integer, interval) FROM PUBLIC;

-- Roles that may start runs still may.
DO $$
DECLARE
    role text;
BEGIN
    FOR role IN
        SELECT a.grantee::regrole::text FROM pg_proc AS p, aclexplode(p.proacl) AS a
        WHERE p.oid = 'tidemill.start(text, jsonb, interval, timestamptz, text, text[])'::regprocedure
          AND a.grantee NOT IN (0, p.proowner) AND a.privilege_type = 'EXECUTE'
    LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION '
            || 'tidemill.start(text, jsonb, interval, timestamptz, text, text[], integer, interval) TO ' || role;
    END LOOP;
END $$;
DROP FUNCTION tidemill.start(text, jsonb, interval, timestamptz, text, text[]);
