-- needs_at_least: 49
-- The SQL functions take every option of jobs: unique_for, debounce, webhook and required_model were missing, and most of batches.

-- A function with other arguments is another one: those that may call it are remembered meanwhile.
SELECT set_config('callers.of_enqueue',
                  coalesce(string_agg(quote_ident(pg_get_userbyid(acl.grantee)), ', '), ''), true)
FROM pg_proc, aclexplode(proacl) AS acl
WHERE pg_proc.oid = 'tidemill.enqueue'::regproc AND acl.privilege_type = 'EXECUTE' AND acl.grantee <> proowner
  AND acl.grantee <> 0;
SELECT set_config('callers.of_enqueue_batch',
                  coalesce(string_agg(quote_ident(pg_get_userbyid(acl.grantee)), ', '), ''), true)
FROM pg_proc, aclexplode(proacl) AS acl
WHERE pg_proc.oid = 'tidemill.enqueue_batch'::regproc AND acl.privilege_type = 'EXECUTE' AND acl.grantee <> proowner
  AND acl.grantee <> 0;

DROP FUNCTION tidemill.enqueue, tidemill.enqueue_batch, tidemill.insert_job;

-- The option of a job whose outcome is posted to an address when it has ended.
CREATE FUNCTION tidemill.webhook_of(url text) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
DECLARE
    poster tidemill.declared;
BEGIN
    IF url !~ '^https?://[^/@\s]+(/|$|\?)' THEN
        RAISE EXCEPTION 'webhook is not an http or https address, such as https://host/path'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT * INTO poster FROM tidemill.declared AS d WHERE d.shape = 'task' AND d.name = 'webhook';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'webhooks are signed, and this application has no secret' USING ERRCODE = 'undefined_object',
            HINT = 'Set webhook_secret, such as TIDEMILL_WEBHOOK_SECRET, on every host.';
    END IF;
    RETURN jsonb_build_object('webhook', jsonb_build_object(
        'task', 'webhook', 'queue', poster.queue, 'takes', '["job"]'::jsonb, 'options', poster.options,
        'args', jsonb_build_object('url', url)));
END $$;
REVOKE ALL ON FUNCTION tidemill.webhook_of FROM PUBLIC;

-- Stores a job for `enqueue` and `enqueue_batch`, without telling workers.
CREATE FUNCTION tidemill.insert_job(
    of_task text, args jsonb, delay interval, at timestamptz, priority integer, queue text, unique_key text,
    concurrency_key text, max_concurrency integer, fair_key text, deadline interval, tags text[], rate_key text,
    batch bigint, unique_for interval DEFAULT NULL, debounce interval DEFAULT NULL, webhook text DEFAULT NULL,
    required_model text DEFAULT NULL, OUT id bigint, OUT is_new boolean, OUT gate text, OUT wake text)
LANGUAGE plpgsql AS $$ -- its callers set the search_path
#variable_conflict use_column
DECLARE
    usual tidemill.declared;
    alone text := insert_job.unique_key;
    lane  text;
    rated text;
    place text;
    level integer;
    most  integer;
    other json;
    mine  bigint;
    held  text;
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
    IF insert_job.priority NOT BETWEEN 0 AND 9 THEN
        RAISE EXCEPTION 'priority % is outside 0 to 9', insert_job.priority
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF insert_job.queue !~ '^[^[:space:][:cntrl:]]([^[:cntrl:]]{0,198}[^[:space:][:cntrl:]])?$' THEN
        RAISE EXCEPTION '% is not a queue name: use 1 to 200 printable characters, no space at the ends',
            quote_literal(left(insert_job.queue, 100)) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF array_position(insert_job.tags, NULL) IS NOT NULL THEN
        RAISE EXCEPTION 'a tag is NULL' USING ERRCODE = 'invalid_parameter_value';
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
    IF greatest(octet_length(alone), octet_length(gate), octet_length(lane)) > 1800 THEN
        RAISE EXCEPTION 'unique_key, concurrency_key, and fair_key with rate_key, have at most 1800 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF gate IS NOT NULL THEN
        most := coalesce(insert_job.max_concurrency, usual.max_concurrency);
        UPDATE tidemill.concurrency_key AS c SET max_concurrency = most WHERE c.key = gate AND c.max_concurrency <> most;
    END IF;
    IF insert_job.max_concurrency IS NOT NULL AND (gate IS NULL OR most < 1) THEN
        RAISE EXCEPTION 'max_concurrency is how many jobs that share a concurrency_key run at a time: give both, and 1 or more'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(insert_job.webhook, insert_job.required_model) IS NOT NULL THEN
        other := coalesce(usual.options::jsonb, '{}')
            || jsonb_strip_nulls(jsonb_build_object('required_model', insert_job.required_model))
            || CASE WHEN insert_job.webhook IS NULL THEN '{}' ELSE tidemill.webhook_of(insert_job.webhook) END;
    END IF;
    IF coalesce(insert_job.unique_for, insert_job.debounce) IS NOT NULL AND alone IS NULL THEN
        RAISE EXCEPTION 'unique_for and debounce need a unique_key' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF insert_job.debounce IS NOT NULL THEN
        IF coalesce(insert_job.delay, insert_job.unique_for) IS NOT NULL OR insert_job.at IS NOT NULL
            OR insert_job.batch IS NOT NULL THEN
            RAISE EXCEPTION 'debounce is itself a delay: leave out delay, at and unique_for, and batch'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        delay := insert_job.debounce;
    END IF;
    place := coalesce(insert_job.queue, usual.queue);
    level := coalesce(insert_job.priority, usual.priority);
    wake := place || coalesce(chr(10) || level || lane, '');
    LOOP
        mine := nextval('tidemill.job_id_seq');
        IF insert_job.debounce IS NOT NULL THEN
            SELECT j.id, j.state INTO id, held FROM tidemill.job AS j WHERE j.task = of_task AND j.unique_key = alone
            FOR UPDATE;
            IF held = 'running' THEN -- It keeps its arguments, and another one takes the key.
                UPDATE tidemill.job AS j SET unique_key = NULL WHERE j.id = insert_job.id;
            ELSIF held IS NOT NULL THEN
                UPDATE tidemill.job AS j SET args = insert_job.args, due_at = CASE
                    WHEN now() + insert_job.debounce * 0.9 > j.due_at THEN now() + insert_job.debounce ELSE j.due_at END
                WHERE j.id = insert_job.id;
                is_new := false;
                EXIT;
            END IF;
        ELSIF insert_job.unique_for IS NOT NULL THEN
            INSERT INTO tidemill.unique_window AS w (task, unique_key, job_id, until)
            SELECT of_task, alone, mine, now() + insert_job.unique_for WHERE NOT EXISTS (
                SELECT FROM tidemill.job AS j WHERE j.task = of_task AND j.unique_key = alone)
            ON CONFLICT (task, unique_key) DO UPDATE SET job_id = excluded.job_id, until = excluded.until
                WHERE w.until <= now();
            IF NOT FOUND THEN
                SELECT held_by.id INTO id FROM (
                    SELECT j.id FROM tidemill.job AS j WHERE j.task = of_task AND j.unique_key = alone
                    UNION ALL
                    SELECT w.job_id FROM tidemill.unique_window AS w
                    WHERE w.task = of_task AND w.unique_key = alone AND w.until > now() LIMIT 1) AS held_by;
                is_new := false;
                EXIT WHEN id IS NOT NULL;
                CONTINUE;
            END IF;
        END IF;
        INSERT INTO tidemill.job (id, queue, task, args, priority, due_at, deadline, tags, options, required_model, origin,
                                  unique_key, concurrency_key, max_concurrency, fair_key, rate_key, key_rate, key_burst,
                                  batch_id, state, note)
        VALUES (mine, place, of_task, insert_job.args, level,
                coalesce(insert_job.at, now() + coalesce(insert_job.delay, '0')), now() + insert_job.deadline,
                nullif(usual.tags || insert_job.tags, '{}'), coalesce(other, usual.options),
                coalesce(insert_job.required_model, usual.required_model),
                json_build_object('by', 'SQL by ' || session_user), alone, gate,
                most, lane, rated, CASE WHEN rated IS NOT NULL THEN usual.key_rate END,
                CASE WHEN rated IS NOT NULL THEN usual.key_burst END, insert_job.batch,
                CASE WHEN gate IS NULL THEN 'ready' ELSE 'throttled' END,
                'waits for a slot of concurrency key ' || gate)
        ON CONFLICT (task, unique_key) WHERE unique_key IS NOT NULL DO NOTHING
        RETURNING job.id INTO id;
        is_new := id IS NOT NULL;
        EXIT WHEN is_new;
        IF insert_job.unique_for IS NOT NULL THEN -- Another transaction has stored a job with the key meanwhile.
            DELETE FROM tidemill.unique_window AS w WHERE w.task = of_task AND w.unique_key = alone AND w.job_id = mine;
        END IF;
        SELECT j.id INTO id FROM tidemill.job AS j WHERE j.task = of_task AND j.unique_key = alone;
        EXIT WHEN id IS NOT NULL; -- the job that has the key
    END LOOP;
END $$;

CREATE FUNCTION tidemill.enqueue(
    task text, args jsonb DEFAULT '{}', delay interval DEFAULT NULL, at timestamptz DEFAULT NULL,
    priority integer DEFAULT NULL, queue text DEFAULT NULL, unique_key text DEFAULT NULL,
    concurrency_key text DEFAULT NULL, max_concurrency integer DEFAULT NULL, fair_key text DEFAULT NULL,
    deadline interval DEFAULT NULL, tags text[] DEFAULT NULL, rate_key text DEFAULT NULL, batch bigint DEFAULT NULL,
    unique_for interval DEFAULT NULL, debounce interval DEFAULT NULL, webhook text DEFAULT NULL,
    required_model text DEFAULT NULL)
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
        enqueue.rate_key, enqueue.batch, enqueue.unique_for, enqueue.debounce, enqueue.webhook, enqueue.required_model);
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

CREATE FUNCTION tidemill.enqueue_batch(
    task text, each jsonb[], on_success text DEFAULT NULL, on_complete text DEFAULT NULL, name text DEFAULT NULL,
    priority integer DEFAULT NULL, queue text DEFAULT NULL, tags text[] DEFAULT NULL, keep_open boolean DEFAULT false,
    delay interval DEFAULT NULL, at timestamptz DEFAULT NULL, deadline interval DEFAULT NULL, unique_key text DEFAULT NULL,
    unique_for interval DEFAULT NULL, concurrency_key text DEFAULT NULL, max_concurrency integer DEFAULT NULL,
    fair_key text DEFAULT NULL, rate_key text DEFAULT NULL, webhook text DEFAULT NULL, required_model text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    made  bigint;
    args  jsonb;
    one   record;
    gates text[] := '{}';
    wakes text[] := '{}';
    count bigint := 0;
BEGIN
    INSERT INTO tidemill.batch (name, is_open, origin, on_success, on_complete)
    VALUES (enqueue_batch.name, coalesce(enqueue_batch.keep_open, false),
            json_build_object('by', 'SQL by ' || session_user),
            tidemill.batch_callback(enqueue_batch.on_success), tidemill.batch_callback(enqueue_batch.on_complete))
    RETURNING batch.id INTO made;
    FOREACH args IN ARRAY coalesce(enqueue_batch.each, '{}') LOOP
        SELECT * INTO one FROM tidemill.insert_job(
            enqueue_batch.task, args, enqueue_batch.delay, enqueue_batch.at, enqueue_batch.priority, enqueue_batch.queue,
            enqueue_batch.unique_key, enqueue_batch.concurrency_key, enqueue_batch.max_concurrency,
            enqueue_batch.fair_key, enqueue_batch.deadline, enqueue_batch.tags, enqueue_batch.rate_key, made,
            enqueue_batch.unique_for, NULL, enqueue_batch.webhook, enqueue_batch.required_model);
        CONTINUE WHEN NOT one.is_new;
        count := count + 1;
        IF one.gate IS NOT NULL AND one.gate <> ALL (gates) THEN
            gates := gates || one.gate;
        END IF;
        IF one.wake <> ALL (wakes) AND cardinality(wakes) <= 20 THEN
            wakes := wakes || one.wake;
        END IF;
    END LOOP;
    -- A batch without jobs ends at once, by maintenance.
    UPDATE tidemill.batch AS b SET total = count WHERE b.id = made;
    PERFORM tidemill.admit_throttled(gates);
    IF cardinality(wakes) <= 20 THEN
        PERFORM pg_notify('tidemill_jobs', each_wake) FROM unnest(wakes) AS each_wake;
    ELSE -- lanes that have to be looked for
        PERFORM pg_notify('tidemill_jobs', each_queue || chr(10)) FROM (
            SELECT DISTINCT split_part(each_wake, chr(10), 1) AS each_queue FROM unnest(wakes) AS each_wake) AS queues;
    END IF;
    RETURN made;
END $$;

COMMENT ON FUNCTION tidemill.enqueue IS 'Enqueue a job of a task; returns its id, or that of the job with its unique key.';
COMMENT ON FUNCTION tidemill.enqueue_batch IS 'Enqueue jobs of a task as a batch; returns its id: 12 of b12.';

REVOKE ALL ON FUNCTION tidemill.insert_job, tidemill.enqueue, tidemill.enqueue_batch FROM PUBLIC;

DO $$
BEGIN
    IF current_setting('callers.of_enqueue') <> '' THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION tidemill.enqueue TO ' || current_setting('callers.of_enqueue');
    END IF;
    IF current_setting('callers.of_enqueue_batch') <> '' THEN
        EXECUTE 'GRANT EXECUTE ON FUNCTION tidemill.enqueue_batch TO ' || current_setting('callers.of_enqueue_batch');
    END IF;
END $$;
