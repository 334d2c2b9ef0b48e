CREATE OR REPLACE FUNCTION tidemill.claim_limited(of_queue text, room integer, worker bigint, unknown text[],
                                       lowest_first boolean)
RETURNS TABLE (id bigint, attempt integer, queue text, task text, args json, options json, failures smallint,
               losses smallint, keyed boolean, expired boolean, cancel_reason text, priority smallint,
               due_at timestamptz, origin json, wait float8)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    bucket    tidemill.queue;
    available float8;
    taken     integer;
BEGIN
    SELECT * INTO bucket FROM tidemill.queue WHERE name = of_queue FOR UPDATE;
    available := CASE WHEN bucket.rate IS NULL THEN room ELSE least(bucket.burst,
        bucket.tokens + bucket.rate * extract(epoch FROM clock_timestamp() - bucket.refilled_at)) END;
    RETURN QUERY
        UPDATE tidemill.job AS j SET state = 'running', worker_id = worker, attempt = j.attempt + 1,
                                     started_at = now(), note = NULL, progress = NULL
        WHERE EXISTS (SELECT FROM tidemill.worker AS w WHERE w.id = worker AND w.ended_at IS NULL)
          AND j.id = ANY (ARRAY(
            SELECT level.id FROM generate_series(
                CASE WHEN lowest_first THEN 0 ELSE 9 END, CASE WHEN lowest_first THEN 9 ELSE 0 END,
                CASE WHEN lowest_first THEN 1 ELSE -1 END) AS p(priority) CROSS JOIN LATERAL (
                SELECT r.id FROM tidemill.job AS r
                WHERE r.queue = of_queue AND r.priority = p.priority AND r.state = 'ready' AND r.due_at <= now()
                  AND r.task <> ALL (unknown)
                ORDER BY r.due_at, r.id LIMIT room FOR UPDATE SKIP LOCKED) AS level
            LIMIT floor(least(room, available))::integer))
        RETURNING j.id, j.attempt, j.queue, j.task, j.args, j.options, j.failures, j.losses,
                  j.concurrency_key IS NOT NULL, j.deadline <= now(), j.cancel_reason, j.priority, j.due_at,
                  j.origin, NULL::float8;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF bucket.rate IS NOT NULL THEN
        UPDATE tidemill.queue SET tokens = available - taken, refilled_at = clock_timestamp()
        WHERE name = of_queue;
    END IF;
    wait := CASE WHEN bucket.rate IS NULL OR available - taken >= 1 THEN 0
                 ELSE (1 - available + taken) / bucket.rate END;
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION tidemill.claim_limited(of_queue text, room integer, worker bigint, unknown text[])
RETURNS TABLE (id bigint, attempt integer, queue text, task text, args json, options json, failures smallint,
               losses smallint, keyed boolean, expired boolean, cancel_reason text, priority smallint,
               due_at timestamptz, wait float8)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    bucket    tidemill.queue;
    available float8;
    taken     integer;
BEGIN
    SELECT * INTO bucket FROM tidemill.queue WHERE name = of_queue FOR UPDATE;
    available := CASE WHEN bucket.rate IS NULL THEN room ELSE least(bucket.burst,
        bucket.tokens + bucket.rate * extract(epoch FROM clock_timestamp() - bucket.refilled_at)) END;
    RETURN QUERY
        UPDATE tidemill.job AS j SET state = 'running', worker_id = worker, attempt = j.attempt + 1,
                                     started_at = now(), note = NULL, progress = NULL
        WHERE EXISTS (SELECT FROM tidemill.worker AS w WHERE w.id = worker AND w.ended_at IS NULL)
          AND j.id = ANY (ARRAY(
            SELECT level.id FROM generate_series(9, 0, -1) AS p(priority) CROSS JOIN LATERAL (
                SELECT r.id FROM tidemill.job AS r
                WHERE r.queue = of_queue AND r.priority = p.priority AND r.state = 'ready' AND r.due_at <= now()
                  AND r.task <> ALL (unknown)
                ORDER BY r.due_at, r.id LIMIT room FOR UPDATE SKIP LOCKED) AS level
            LIMIT floor(least(room, available))::integer))
        RETURNING j.id, j.attempt, j.queue, j.task, j.args, j.options, j.failures, j.losses,
                  j.concurrency_key IS NOT NULL, j.deadline <= now(), j.cancel_reason, j.priority, j.due_at,
                  NULL::float8;
    GET DIAGNOSTICS taken = ROW_COUNT;
    IF bucket.rate IS NOT NULL THEN
        UPDATE tidemill.queue SET tokens = available - taken, refilled_at = clock_timestamp()
        WHERE name = of_queue;
    END IF;
    wait := CASE WHEN bucket.rate IS NULL OR available - taken >= 1 THEN 0
                 ELSE (1 - available + taken) / bucket.rate END;
    RETURN NEXT;
END $$;

ALTER TABLE tidemill.worker DROP COLUMN trouble;
ALTER TABLE tidemill.run DROP COLUMN suspicions, DROP COLUMN losses;
ALTER TABLE tidemill.job DROP COLUMN suspicions;
