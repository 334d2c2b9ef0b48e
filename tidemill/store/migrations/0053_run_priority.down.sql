DROP FUNCTION tidemill.start(text, jsonb, interval, timestamptz, text, text[], integer, interval);
CREATE FUNCTION tidemill.start(
    name text, input jsonb DEFAULT '{}', delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, tags text[] DEFAULT NULL)
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
    LOOP
        INSERT INTO tidemill.run (workflow, kind, version, key, input, origin, tags, start_at, awake)
        VALUES (start.name, usual ->> 'kind', usual ->> 'version', start.unique_key,
                CASE kind WHEN 'dag' THEN json_build_object('dag', usual -> 'dag', 'args', start.input)
                          ELSE json_build_object('type', usual ->> 'type', 'value', start.input) END,
                json_build_object('by', 'SQL by ' || session_user), start.tags, later, later IS NULL)
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
COMMENT ON FUNCTION tidemill.start IS 'Start a run of a workflow or dag; returns its id, or that of the run with its unique key.';
REVOKE ALL ON FUNCTION tidemill.start FROM PUBLIC;

DROP INDEX tidemill.run_deadline;
DROP INDEX tidemill.run_unowned;
CREATE INDEX run_unowned ON tidemill.run (kind, id) WHERE state = 'running' AND owner IS NULL AND awake;
UPDATE tidemill.run SET state = 'cancelled' WHERE state = 'expired';
ALTER TABLE tidemill.run DROP CONSTRAINT run_state_check;
ALTER TABLE tidemill.run ADD CONSTRAINT run_state_check
    CHECK (state IN ('running', 'needs_attention', 'succeeded', 'failed', 'cancelled', 'timed_out'));
ALTER TABLE tidemill.run DROP COLUMN priority, DROP COLUMN deadline;
