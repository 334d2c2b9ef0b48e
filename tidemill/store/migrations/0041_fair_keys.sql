-- Fair keys: jobs of different keys share their queue. A keyed job is in an index of its own, so plain jobs pay nothing.
ALTER TABLE tidemill.job ADD COLUMN fair_key text COLLATE "C";
ALTER TABLE tidemill.job_history ADD COLUMN fair_key text COLLATE "C";

DROP INDEX tidemill.job_ready;
CREATE INDEX job_ready ON tidemill.job (queue, priority, due_at, id) WHERE state = 'ready' AND fair_key IS NULL;
CREATE INDEX job_fair ON tidemill.job (queue, priority, fair_key, due_at, id)
    WHERE state = 'ready' AND fair_key IS NOT NULL;

-- The shares of fair keys; a key without a row weighs 1. What an operator has set (`by`), code does not change.
CREATE TABLE tidemill.fair_weight (
    queue    text COLLATE "C" NOT NULL,
    fair_key text COLLATE "C" NOT NULL,
    weight   integer NOT NULL CHECK (weight BETWEEN 1 AND 1000),
    by       text,
    PRIMARY KEY (queue, fair_key)
);

-- Makes the next throttled jobs of these keys ready, in order, up to each key's limit. A key whose row another
-- transaction holds is skipped: maintenance admits its jobs later. A wake-up names the lane of a job with a fair key.
CREATE OR REPLACE FUNCTION tidemill.admit_throttled(keys text[]) RETURNS integer LANGUAGE plpgsql
SET lock_timeout = '50ms' AS $$
DECLARE
    wanted   text;
    most     integer;
    admitted integer := 0;
    n        integer;
BEGIN
    FOR wanted IN SELECT DISTINCT key FROM unnest(keys) AS key ORDER BY key LOOP
        BEGIN
            -- The key's row may be missing: it is removed while the key has no jobs.
            IF NOT EXISTS (SELECT FROM tidemill.concurrency_key WHERE key = wanted) THEN
                INSERT INTO tidemill.concurrency_key (key, max_concurrency)
                    SELECT wanted, coalesce(max(max_concurrency), 1) FROM tidemill.job
                    WHERE concurrency_key = wanted AND state = 'throttled' HAVING count(*) > 0
                    ON CONFLICT (key) DO NOTHING;
            END IF;
            SELECT max_concurrency INTO most FROM tidemill.concurrency_key WHERE key = wanted FOR UPDATE;
            WITH let_in AS (
                UPDATE tidemill.job SET state = 'ready', note = NULL WHERE id = ANY (ARRAY(
                    SELECT id FROM tidemill.job
                    WHERE concurrency_key = wanted AND state = 'throttled' AND due_at <= now()
                    ORDER BY priority DESC, due_at, id
                    LIMIT greatest(0, coalesce(most, 0) - (
                        SELECT count(*) FROM tidemill.job
                        WHERE concurrency_key = wanted AND state IN ('ready', 'running', 'no_worker')))))
                RETURNING queue || coalesce(chr(10) || priority || fair_key, '') AS wake),
            news AS (SELECT pg_notify('tidemill_jobs', wake) FROM (SELECT DISTINCT wake FROM let_in) AS wakes)
            SELECT count(*), (SELECT count(*) FROM news) INTO n FROM let_in;
            admitted := admitted + n;
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN admitted;
END $$;

-- Takes up to `room` tokens of a rate-limited queue; `wait` is how many seconds to wait for the next one.
CREATE FUNCTION tidemill.take_tokens(of_queue text, room integer, OUT granted integer, OUT wait float8)
LANGUAGE plpgsql AS $$
DECLARE
    bucket    tidemill.queue;
    available float8;
BEGIN
    SELECT * INTO bucket FROM tidemill.queue WHERE name = of_queue FOR UPDATE;
    IF bucket.rate IS NULL THEN
        granted := room;
        wait := 0;
        RETURN;
    END IF;
    available := least(bucket.burst,
        bucket.tokens + bucket.rate * extract(epoch FROM clock_timestamp() - bucket.refilled_at));
    granted := greatest(0, floor(least(room, available)));
    UPDATE tidemill.queue SET tokens = available - granted, refilled_at = clock_timestamp() WHERE name = of_queue;
    wait := CASE WHEN available - granted >= 1 THEN 0 ELSE (1 - available + granted) / bucket.rate END;
END $$;

DO $$
DECLARE
    claim regprocedure;
BEGIN
    FOREACH claim IN ARRAY ARRAY['tidemill.claim_limited(text, integer, bigint, text[], boolean)',
                                 'tidemill.claim_limited(text, integer, bigint, text[])']::regprocedure[] LOOP
        EXECUTE replace(pg_get_functiondef(claim), 'r.suspicions = 0', 'r.fair_key IS NULL AND r.suspicions = 0');
    END LOOP;
END $$;
