-- Gates of keys for which very many jobs wait, and gates that somebody holds for long.

CREATE INDEX job_gated ON tidemill.job (concurrency_key, priority DESC, due_at, id) WHERE state = 'gated';

-- The next job is found in order, and nothing reads all that wait. A gate that somebody holds in a transaction that
-- stays open is passed over, for nobody must wait for it: the orchestrator lets its jobs through later.
CREATE OR REPLACE FUNCTION tidemill.admit_gated(keys text[]) RETURNS integer LANGUAGE plpgsql
SET lock_timeout = '50ms' AS $$
DECLARE
    wanted   text;
    most     integer;
    admitted integer := 0;
    n        integer;
BEGIN
    FOR wanted IN SELECT DISTINCT key FROM unnest(keys) AS key ORDER BY key LOOP
        BEGIN
            -- A key's row may not be there yet, or have been cleaned away while none of its jobs was there.
            IF NOT EXISTS (SELECT FROM tidemill.concurrency WHERE key = wanted) THEN
                INSERT INTO tidemill.concurrency (key, max)
                    SELECT wanted, coalesce(max(concurrency_max), 1) FROM tidemill.job
                    WHERE concurrency_key = wanted AND state = 'gated' HAVING count(*) > 0
                    ON CONFLICT (key) DO NOTHING;
            END IF;
            SELECT max INTO most FROM tidemill.concurrency WHERE key = wanted FOR UPDATE;
            WITH let_in AS (
                UPDATE tidemill.job SET state = 'ready', note = NULL WHERE id = ANY (ARRAY(
                    SELECT id FROM tidemill.job
                    WHERE concurrency_key = wanted AND state = 'gated' AND due_at <= now()
                    ORDER BY priority DESC, due_at, id
                    LIMIT greatest(0, coalesce(most, 0) - (
                        SELECT count(*) FROM tidemill.job
                        WHERE concurrency_key = wanted AND state IN ('ready', 'running', 'unrouted')))))
                RETURNING queue),
            news AS (SELECT pg_notify('tidemill_jobs', queue) FROM (SELECT DISTINCT queue FROM let_in) AS queues)
            SELECT count(*), (SELECT count(*) FROM news) INTO n FROM let_in;
            admitted := admitted + n;
        EXCEPTION WHEN lock_not_available THEN
            CONTINUE;
        END;
    END LOOP;
    RETURN admitted;
END $$;
