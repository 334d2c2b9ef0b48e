-- needs_at_least: 49
-- Rate keys of runs: those that share one begin at most at its rate, over all run workers. Such a run sleeps, with a
-- `start_at`, until its rate lets it begin. Its bucket is in `rate_key`, under U+001F and its key.
ALTER TABLE tidemill.run
    ADD COLUMN rate_key text COLLATE "C", ADD COLUMN key_rate float8, ADD COLUMN key_burst float8;

-- A key with `{argument}` filled in, or with the argument's default: the rule of `core.jobs.key_template`.
CREATE OR REPLACE FUNCTION tidemill.fill_in(template text, task json, args jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    known  jsonb := coalesce((task -> 'defaults')::jsonb, '{}') || args;
    part   text;
    filled text := '';
BEGIN
    IF template IS NULL OR position('{' IN template) = 0 THEN
        RETURN template;
    END IF;
    FOR part IN SELECT piece[1] FROM regexp_matches(template, '\{\w+\}|[^{]+|\{', 'g') AS piece LOOP
        IF part ~ '^\{\w+\}$' THEN
            IF NOT known ? btrim(part, '{}') THEN
                RAISE EXCEPTION 'the key % needs the argument %', template, btrim(part, '{}')
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the argument, or the key itself.';
            END IF;
            CASE jsonb_typeof(known -> btrim(part, '{}'))
                WHEN 'boolean' THEN part := initcap(known ->> btrim(part, '{}'));
                WHEN 'null' THEN part := 'None';
                WHEN 'object', 'array' THEN
                    RAISE EXCEPTION 'the key % needs text or a number, and % is neither', template, btrim(part, '{}')
                        USING ERRCODE = 'invalid_parameter_value', HINT = 'Give the key itself.';
                ELSE part := known ->> btrim(part, '{}');
            END CASE;
        END IF;
        filled := filled || part;
    END LOOP;
    RETURN filled;
END $$;

-- Arguments are filled into the keys of a call as into those of its task.
CREATE OR REPLACE FUNCTION tidemill.insert_job(
    of_task text, args jsonb, delay interval, at timestamptz, priority integer, queue text, unique_key text,
    concurrency_key text, max_concurrency integer, fair_key text, deadline interval, tags text[], rate_key text,
    batch bigint, OUT id bigint, OUT is_new boolean, OUT gate text, OUT wake text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    usual json;
    lane  text;
    rated text;
    alone text;
    place text;
    level integer;
BEGIN
    SELECT d.template INTO usual FROM tidemill.declared AS d WHERE d.shape = 'task' AND d.name = of_task;
    IF usual IS NULL THEN
        RAISE EXCEPTION 'there is no task %', of_task USING ERRCODE = 'undefined_object',
            HINT = 'Tasks are known once a worker or the maintenance process of their application has started.';
    END IF;
    IF jsonb_typeof(insert_job.args) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'args of task % must be a JSON object, such as {"order_id": 7}', of_task
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF insert_job.at IS NOT NULL AND insert_job.delay IS NOT NULL THEN
        RAISE EXCEPTION 'give either delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    gate := tidemill.fill_in(coalesce(insert_job.concurrency_key, usual ->> 'concurrency_key'), usual, insert_job.args);
    lane := tidemill.fill_in(coalesce(insert_job.fair_key, usual ->> 'fair_key'), usual, insert_job.args);
    alone := tidemill.fill_in(insert_job.unique_key, usual, insert_job.args);
    rated := tidemill.fill_in(coalesce(insert_job.rate_key, usual ->> 'rate_key'), usual, insert_job.args);
    IF position(chr(31) IN coalesce(lane, '') || coalesce(rated, '')) > 0 THEN
        RAISE EXCEPTION 'fair_key and rate_key must not contain the character U+001F, which separates them'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF rated IS NOT NULL THEN
        lane := coalesce(lane, '') || chr(31) || rated;
    END IF;
    place := coalesce(insert_job.queue, usual ->> 'queue');
    level := coalesce(insert_job.priority, (usual ->> 'priority')::integer, 5);
    wake := place || coalesce(chr(10) || level || lane, '');
    LOOP
        INSERT INTO tidemill.job (queue, task, args, priority, due_at, deadline, tags, options, required_model, origin,
                                  unique_key, concurrency_key, max_concurrency, fair_key, rate_key, key_rate, key_burst,
                                  batch_id, state, note)
        VALUES (place, of_task, insert_job.args, level,
                coalesce(insert_job.at, now() + coalesce(insert_job.delay, '0')), now() + insert_job.deadline,
                nullif(ARRAY(SELECT json_array_elements_text(usual -> 'tags')) || coalesce(insert_job.tags, '{}'), '{}'),
                (usual ->> 'options')::json, usual -> 'options' ->> 'required_model', -- a JSON null is none
                json_build_object('by', 'SQL by ' || session_user), alone, gate,
                CASE WHEN gate IS NOT NULL
                     THEN coalesce(insert_job.max_concurrency, (usual ->> 'max_concurrency')::integer, 1) END,
                lane, rated, CASE WHEN rated IS NOT NULL THEN (usual ->> 'key_rate')::float8 END,
                CASE WHEN rated IS NOT NULL THEN (usual ->> 'key_burst')::float8 END, insert_job.batch,
                CASE WHEN gate IS NULL THEN 'ready' ELSE 'throttled' END,
                'waits for a slot of concurrency key ' || gate)
        ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING job.id INTO id;
        is_new := id IS NOT NULL;
        EXIT WHEN is_new;
        SELECT j.id INTO id FROM tidemill.job AS j WHERE j.task = of_task AND j.unique_key = alone;
        EXIT WHEN id IS NOT NULL; -- the job that has the key
    END LOOP;
END $$;

-- What the end of a batch enqueues has all that its task declares.
CREATE OR REPLACE FUNCTION tidemill.batch_callback(of_task text) RETURNS json
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    usual json;
BEGIN
    IF of_task IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT d.template INTO usual FROM tidemill.declared AS d WHERE d.shape = 'task' AND d.name = of_task;
    IF usual IS NULL THEN
        RAISE EXCEPTION 'there is no task %', of_task USING ERRCODE = 'undefined_object',
            HINT = 'Tasks are known once a worker or the maintenance process of their application has started.';
    END IF;
    RETURN json_build_object('task', of_task, 'queue', usual ->> 'queue', 'takes', coalesce((
        SELECT json_agg(fact) FROM unnest('{batch,total,succeeded,failed,cancelled,expired}'::text[]) AS fact
        WHERE (usual -> 'takes')::jsonb ? fact), '[]'),
        'options', usual -> 'options', 'args', '{}'::json, 'priority', (usual ->> 'priority')::integer,
        'tags', usual -> 'tags', 'concurrency_key', usual -> 'concurrency_key',
        'max_concurrency', usual -> 'max_concurrency', 'fair_key', usual -> 'fair_key', 'rate_key', usual -> 'rate_key',
        'key_rate', usual -> 'key_rate', 'key_burst', usual -> 'key_burst', 'defaults', usual -> 'defaults');
END $$;

-- A key of a job that follows from the end of something: filled in now, unless it comes with all of its arguments.
CREATE FUNCTION tidemill.callback_key(callback json, name text, args jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN json_array_length(callback -> 'takes') > 0 OR callback -> 'defaults' IS NOT NULL
                THEN tidemill.fill_in(callback ->> name, callback, args) ELSE callback ->> name END
$$;
REVOKE ALL ON FUNCTION tidemill.callback_key FROM PUBLIC;

-- A function with more arguments is another one: those that may call it are remembered meanwhile.
SELECT set_config('callers.of_start',
                  coalesce(string_agg(quote_ident(pg_get_userbyid(acl.grantee)), ', '), ''), true)
FROM pg_proc, aclexplode(proacl) AS acl
WHERE pg_proc.oid = 'tidemill.start'::regproc AND acl.privilege_type = 'EXECUTE' AND acl.grantee <> proowner
  AND acl.grantee <> 0;

DROP FUNCTION tidemill.start;

CREATE FUNCTION tidemill.start(
    name text, input jsonb DEFAULT '{}', delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    unique_key text DEFAULT NULL, tags text[] DEFAULT NULL, priority integer DEFAULT NULL, deadline interval DEFAULT NULL,
    rate_key text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    usual json;
    kind  text;
    made  bigint;
    later timestamptz := coalesce(start.at, now() + start.delay);
    rated text;
    alone text;
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
    rated := tidemill.fill_in(coalesce(start.rate_key, usual ->> 'rate_key'), usual, start.input);
    alone := tidemill.fill_in(start.unique_key, usual, start.input);
    IF rated IS NOT NULL AND usual ->> 'key_rate' IS NULL THEN
        RAISE EXCEPTION '% has no rate for the rate key %', start.name, rated USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Declare it with its workflow or dag: rate="10/s".';
    END IF;
    IF rated IS NOT NULL THEN
        later := coalesce(later, now()); -- run workers begin it when its rate lets them
    END IF;
    LOOP
        INSERT INTO tidemill.run (workflow, kind, version, key, input, origin, tags, start_at, awake, priority, deadline,
                                  rate_key, key_rate, key_burst)
        VALUES (start.name, usual ->> 'kind', usual ->> 'version', alone,
                CASE kind WHEN 'dag' THEN json_build_object('dag', usual -> 'dag', 'args', start.input)
                          ELSE json_build_object('type', usual ->> 'type', 'value', start.input) END,
                json_build_object('by', 'SQL by ' || session_user), start.tags, later, later IS NULL,
                start.priority, now() + start.deadline,
                rated, CASE WHEN rated IS NOT NULL THEN (usual ->> 'key_rate')::float8 END,
                CASE WHEN rated IS NOT NULL THEN (usual ->> 'key_burst')::float8 END)
        ON CONFLICT (workflow, key) WHERE key IS NOT NULL DO NOTHING
        RETURNING id INTO made;
        EXIT WHEN made IS NOT NULL;
        SELECT r.id INTO made FROM tidemill.run AS r WHERE r.workflow = start.name AND r.key = alone;
        IF made IS NOT NULL THEN
            RETURN made; -- the run that has the key
        END IF;
    END LOOP;
    PERFORM pg_notify('tidemill_runs', CASE WHEN later IS NULL THEN '' ELSE 'wake' END);
    RETURN made;
END $$;

COMMENT ON FUNCTION tidemill.start
    IS 'Start a run of a workflow or dag; returns its id, or that of the run with its unique key.';
REVOKE ALL ON FUNCTION tidemill.start FROM PUBLIC;

DO $$
BEGIN
    IF current_setting('callers.of_start') <> '' THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION tidemill.start TO ' || current_setting('callers.of_start');
    END IF;
END $$;
