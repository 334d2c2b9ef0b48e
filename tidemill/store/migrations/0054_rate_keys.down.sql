DROP FUNCTION tidemill.enqueue_batch;
DROP FUNCTION tidemill.batch_callback;
DROP FUNCTION tidemill.enqueue;
DROP FUNCTION tidemill.insert_job;

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

COMMENT ON FUNCTION tidemill.enqueue IS 'Enqueue a job of a task; returns its id, or that of the job with its unique key.';
REVOKE ALL ON FUNCTION tidemill.enqueue FROM PUBLIC;

DROP TABLE tidemill.rate_key;
ALTER TABLE tidemill.queue DROP COLUMN key_rate, DROP COLUMN key_burst;
UPDATE tidemill.job SET fair_key = nullif(split_part(fair_key, chr(31), 1), '') WHERE rate_key IS NOT NULL;
UPDATE tidemill.job_history SET fair_key = nullif(split_part(fair_key, chr(31), 1), '') WHERE rate_key IS NOT NULL;
ALTER TABLE tidemill.job_history DROP COLUMN rate_key, DROP COLUMN key_rate, DROP COLUMN key_burst;
ALTER TABLE tidemill.job DROP COLUMN rate_key, DROP COLUMN key_rate, DROP COLUMN key_burst;
