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

CREATE OR REPLACE FUNCTION tidemill.enqueue(
    task text, args jsonb DEFAULT '{}', delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    priority integer DEFAULT NULL, queue text DEFAULT NULL, unique_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL, max_concurrency integer DEFAULT NULL, fair_key text DEFAULT NULL,
    deadline interval DEFAULT NULL, tags text[] DEFAULT NULL, rate_key text DEFAULT NULL, batch bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made record;
BEGIN
    IF enqueue.batch IS NOT NULL THEN
        PERFORM FROM tidemill.batch AS b WHERE b.id = enqueue.batch AND b.ended_at IS NULL AND b.cancel_reason IS NULL
        FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'batch b% accepts no more jobs: it has ended, was cancelled, or never was', enqueue.batch
                USING ERRCODE = 'no_data_found', HINT = 'Start another one.';
        END IF;
    END IF;
    SELECT * INTO made FROM tidemill.insert_job(
        enqueue.task, enqueue.args, enqueue.delay, enqueue.at, enqueue.priority, enqueue.queue, enqueue.unique_key,
        enqueue.concurrency_key, enqueue.max_concurrency, enqueue.fair_key, enqueue.deadline, enqueue.tags,
        enqueue.rate_key, enqueue.batch);
    IF made.is_new THEN
        IF enqueue.batch IS NOT NULL THEN
            UPDATE tidemill.batch AS b SET total = b.total + 1 WHERE b.id = enqueue.batch;
        END IF;
        IF made.gate IS NOT NULL THEN
            PERFORM tidemill.admit_throttled(ARRAY[made.gate]);
        END IF;
        PERFORM pg_notify('tidemill_jobs', made.wake);
    END IF;
    RETURN made.id;
END $$;

ALTER TABLE tidemill.declared
    DROP COLUMN queue, DROP COLUMN priority, DROP COLUMN tags, DROP COLUMN options, DROP COLUMN required_model,
    DROP COLUMN concurrency_key, DROP COLUMN max_concurrency, DROP COLUMN fair_key, DROP COLUMN rate_key,
    DROP COLUMN key_rate, DROP COLUMN key_burst;
DROP FUNCTION tidemill.texts_of;
