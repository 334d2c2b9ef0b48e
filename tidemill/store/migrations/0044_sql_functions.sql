-- Functions that start work from SQL: from triggers, from other languages, and by roles that may do nothing else. They
-- run with the rights of their owner. Their arguments stay as they are; new ones are added at the end, with a default.

-- What the application declares: what a job or run of it is like, without its arguments.
CREATE TABLE tidemill.declared (
    shape    text COLLATE "C" NOT NULL CHECK (shape IN ('task', 'flow', 'dag')),
    name     text COLLATE "C" NOT NULL,
    template json NOT NULL,
    PRIMARY KEY (shape, name)
);

-- A key of a task with `{argument}` filled in, or with the argument's default. Each is filled in once: an argument with
-- braces in it stays as it is.
CREATE FUNCTION tidemill.fill_in(template text, task json, args jsonb) RETURNS text LANGUAGE plpgsql STABLE AS $$
DECLARE
    known  jsonb := (task -> 'defaults')::jsonb || args;
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
            part := coalesce(known ->> btrim(part, '{}'), 'None');
        END IF;
        filled := filled || part;
    END LOOP;
    RETURN filled;
END $$;

CREATE FUNCTION tidemill.enqueue(
    task text, args jsonb DEFAULT '{}', delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    priority integer DEFAULT NULL, queue text DEFAULT NULL, unique_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL, max_concurrency integer DEFAULT NULL, fair_key text DEFAULT NULL,
    deadline interval DEFAULT NULL, tags text[] DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    usual json;
    made  bigint;
    gate  text;
    lane  text;
    place text;
    level integer;
BEGIN
    SELECT d.template INTO usual FROM tidemill.declared AS d WHERE d.shape = 'task' AND d.name = enqueue.task;
    IF usual IS NULL THEN
        RAISE EXCEPTION 'there is no task %', enqueue.task USING ERRCODE = 'undefined_object',
            HINT = 'Tasks are known once a worker or the maintenance process of their application has started.';
    END IF;
    IF jsonb_typeof(enqueue.args) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'args of task % must be a JSON object, such as {"order_id": 7}', enqueue.task
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF enqueue.at IS NOT NULL AND enqueue.delay IS NOT NULL THEN
        RAISE EXCEPTION 'give either delay or at, not both' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    gate := coalesce(enqueue.concurrency_key, tidemill.fill_in(usual ->> 'concurrency_key', usual, enqueue.args));
    lane := coalesce(enqueue.fair_key, tidemill.fill_in(usual ->> 'fair_key', usual, enqueue.args));
    place := coalesce(enqueue.queue, usual ->> 'queue');
    level := coalesce(enqueue.priority, (usual ->> 'priority')::integer, 5);
    LOOP
        INSERT INTO tidemill.job (queue, task, args, priority, due_at, deadline, tags, options, required_model, origin,
                                  unique_key, concurrency_key, max_concurrency, fair_key, state, note)
        VALUES (place, enqueue.task, enqueue.args, level, coalesce(enqueue.at, now() + coalesce(enqueue.delay, '0')),
                now() + enqueue.deadline,
                nullif(ARRAY(SELECT json_array_elements_text(usual -> 'tags')) || coalesce(enqueue.tags, '{}'), '{}'),
                usual -> 'options', usual -> 'options' ->> 'required_model',
                json_build_object('by', 'SQL by ' || session_user), enqueue.unique_key, gate,
                CASE WHEN gate IS NOT NULL
                     THEN coalesce(enqueue.max_concurrency, (usual ->> 'max_concurrency')::integer, 1) END,
                lane, CASE WHEN gate IS NULL THEN 'ready' ELSE 'throttled' END,
                'waits for a slot of concurrency key ' || gate)
        ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING id INTO made;
        EXIT WHEN made IS NOT NULL;
        SELECT j.id INTO made FROM tidemill.job AS j WHERE j.task = enqueue.task AND j.unique_key = enqueue.unique_key;
        IF made IS NOT NULL THEN
            RETURN made; -- the job that has the key
        END IF;
    END LOOP;
    IF gate IS NOT NULL THEN
        PERFORM tidemill.admit_throttled(ARRAY[gate]);
    END IF;
    PERFORM pg_notify('tidemill_jobs', place || coalesce(chr(10) || level || lane, ''));
    RETURN made;
END $$;

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

CREATE FUNCTION tidemill.send(
    run bigint, event text, value jsonb DEFAULT '{}', step text DEFAULT NULL, delay interval DEFAULT NULL,
    at timestamptz DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    later timestamptz := coalesce(send.at, now() + send.delay);
    known text[];
BEGIN
    -- The event classes that run workers have which drive such runs, or had, if none is alive.
    SELECT array_agg(DISTINCT class) INTO known FROM (
        SELECT w.events, w.ended_at IS NULL AS lives,
               row_number() OVER (ORDER BY w.ended_at IS NULL DESC, w.id DESC) AS place
        FROM tidemill.worker AS w WHERE w.events IS NOT NULL AND w.versions ->> (
            SELECT 'run ' || r.kind FROM tidemill.run AS r WHERE r.id = send.run) IS NOT NULL) AS had,
        unnest(had.events) AS class
    WHERE (had.lives OR had.place = 1) AND (class = send.event OR class LIKE '%.' || send.event);
    IF cardinality(known) > 1 THEN
        RAISE EXCEPTION 'several events are called %: %', send.event, array_to_string(known, ', ')
            USING ERRCODE = 'ambiguous_alias', HINT = 'Name one of them in full.';
    ELSIF known IS NULL AND position('.' IN send.event) = 0 THEN
        RAISE EXCEPTION 'there is no event %', send.event USING ERRCODE = 'undefined_object',
            HINT = 'Name its class in full, such as shop.Paid; classes are known once a worker of the application has started.';
    END IF;
    UPDATE tidemill.run AS r SET awake = r.start_at IS NULL AND (r.awake OR later IS NULL)
    WHERE r.id = send.run AND r.state IN ('running', 'needs_attention');
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no run %, or it has ended', send.run USING ERRCODE = 'no_data_found',
            HINT = 'It accepts nothing more; start a new run.';
    END IF;
    INSERT INTO tidemill.inbox (run_id, data, due_at)
    VALUES (send.run, json_build_object('kind', 'received', 'at', extract(epoch FROM clock_timestamp()), 'event',
                json_build_object('type', coalesce(known[1], send.event), 'value', send.value), 'target', send.step),
            coalesce(later, now()));
    PERFORM pg_notify('tidemill_runs', CASE WHEN later IS NULL THEN '' ELSE 'wake' END);
END $$;

CREATE FUNCTION tidemill.publish(topic text, payload jsonb, key text DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    INSERT INTO tidemill.event_log (topic, keys, payloads)
    VALUES (publish.topic, CASE WHEN publish.key IS NOT NULL THEN ARRAY[publish.key] END,
            ARRAY[convert_to(publish.payload::text, 'UTF8')]);
    PERFORM pg_notify('tidemill_streams', publish.topic);
END $$;

COMMENT ON FUNCTION tidemill.enqueue IS 'Enqueue a job of a task; returns its id, or that of the job with its unique key.';
COMMENT ON FUNCTION tidemill.start IS 'Start a run of a workflow or dag; returns its id, or that of the run with its unique key.';
COMMENT ON FUNCTION tidemill.send IS 'Send an event to a run.';
COMMENT ON FUNCTION tidemill.publish IS 'Append a message to a topic of the PostgreSQL log.';

REVOKE ALL ON FUNCTION tidemill.enqueue, tidemill.start, tidemill.send, tidemill.publish FROM PUBLIC;
