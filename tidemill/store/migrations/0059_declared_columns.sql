-- needs_at_least: 49
-- `tidemill.enqueue` reads what a task declares from columns: each read of a JSON template parsed it again.

-- The texts of a JSON list; NULL if there are none.
CREATE FUNCTION tidemill.texts_of(list json) RETURNS text[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(value) FROM json_array_elements_text(list) AS value
$$;

ALTER TABLE tidemill.declared
    ADD COLUMN queue text COLLATE "C" GENERATED ALWAYS AS (template ->> 'queue') STORED,
    ADD COLUMN priority smallint GENERATED ALWAYS AS (coalesce((template ->> 'priority')::smallint, 5)) STORED,
    ADD COLUMN tags text[] GENERATED ALWAYS AS (tidemill.texts_of(template -> 'tags')) STORED,
    ADD COLUMN options json GENERATED ALWAYS AS (
        CASE WHEN json_typeof(template -> 'options') <> 'null' THEN template -> 'options' END) STORED,
    ADD COLUMN required_model text COLLATE "C" GENERATED ALWAYS AS (template -> 'options' ->> 'required_model') STORED,
    ADD COLUMN concurrency_key text COLLATE "C" GENERATED ALWAYS AS (template ->> 'concurrency_key') STORED,
    ADD COLUMN max_concurrency integer
        GENERATED ALWAYS AS (coalesce((template ->> 'max_concurrency')::integer, 1)) STORED,
    ADD COLUMN fair_key text COLLATE "C" GENERATED ALWAYS AS (template ->> 'fair_key') STORED,
    ADD COLUMN rate_key text COLLATE "C" GENERATED ALWAYS AS (template ->> 'rate_key') STORED,
    ADD COLUMN key_rate float8 GENERATED ALWAYS AS ((template ->> 'key_rate')::float8) STORED,
    ADD COLUMN key_burst float8 GENERATED ALWAYS AS ((template ->> 'key_burst')::float8) STORED;

-- Stores a job for `enqueue` and `enqueue_batch`, without telling workers.
CREATE OR REPLACE FUNCTION tidemill.insert_job(
    of_task text, args jsonb, delay interval, at timestamptz, priority integer, queue text, unique_key text,
    concurrency_key text, max_concurrency integer, fair_key text, deadline interval, tags text[], rate_key text,
    batch bigint, OUT id bigint, OUT is_new boolean, OUT gate text, OUT wake text)
LANGUAGE plpgsql AS $$ -- its callers set the search_path
#variable_conflict use_column
DECLARE
    usual tidemill.declared;
    alone text := insert_job.unique_key;
    lane  text;
    rated text;
    place text;
    level integer;
BEGIN
    SELECT * INTO usual FROM tidemill.declared AS d WHERE d.shape = 'task' AND d.name = of_task;
    IF NOT FOUND THEN
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
    gate := coalesce(insert_job.concurrency_key, usual.concurrency_key);
    IF position('{' IN gate) > 0 THEN
        gate := tidemill.fill_in(gate, usual.template, insert_job.args);
    END IF;
    lane := coalesce(insert_job.fair_key, usual.fair_key);
    IF position('{' IN lane) > 0 THEN
        lane := tidemill.fill_in(lane, usual.template, insert_job.args);
    END IF;
    rated := coalesce(insert_job.rate_key, usual.rate_key);
    IF position('{' IN rated) > 0 THEN
        rated := tidemill.fill_in(rated, usual.template, insert_job.args);
    END IF;
    IF position('{' IN alone) > 0 THEN
        alone := tidemill.fill_in(alone, usual.template, insert_job.args);
    END IF;
    IF position(chr(31) IN coalesce(lane, '') || coalesce(rated, '')) > 0 THEN
        RAISE EXCEPTION 'fair_key and rate_key must not contain the character U+001F, which separates them'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF rated IS NOT NULL THEN
        lane := coalesce(lane, '') || chr(31) || rated;
    END IF;
    place := coalesce(insert_job.queue, usual.queue);
    level := coalesce(insert_job.priority, usual.priority);
    wake := place || coalesce(chr(10) || level || lane, '');
    LOOP
        INSERT INTO tidemill.job (queue, task, args, priority, due_at, deadline, tags, options, required_model, origin,
                                  unique_key, concurrency_key, max_concurrency, fair_key, rate_key, key_rate, key_burst,
                                  batch_id, state, note)
        VALUES (place, of_task, insert_job.args, level,
                coalesce(insert_job.at, now() + coalesce(insert_job.delay, '0')), now() + insert_job.deadline,
                nullif(usual.tags || insert_job.tags, '{}'), usual.options, usual.required_model,
                json_build_object('by', 'SQL by ' || session_user), alone, gate,
                CASE WHEN gate IS NOT NULL THEN coalesce(insert_job.max_concurrency, usual.max_concurrency) END,
                lane, rated, CASE WHEN rated IS NOT NULL THEN usual.key_rate END,
                CASE WHEN rated IS NOT NULL THEN usual.key_burst END, insert_job.batch,
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
    made := tidemill.insert_job(
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
