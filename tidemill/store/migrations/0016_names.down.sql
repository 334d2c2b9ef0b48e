DROP FUNCTION tidemill.admit_throttled(text[]);
CREATE FUNCTION tidemill.admit_gated(keys text[]) RETURNS integer LANGUAGE plpgsql
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

ALTER TABLE tidemill.backfill_state RENAME TO state_waiting;
ALTER TABLE tidemill.state_building RENAME TO state_mark;
ALTER INDEX tidemill.idempotency_key_at RENAME TO answer_at;
ALTER TABLE tidemill.idempotency_key RENAME TO answer;
ALTER TABLE tidemill.throughput RENAME TO pace;
ALTER TABLE tidemill.monitor_source_position RENAME TO monitor_part;
ALTER INDEX tidemill.monitor_setting_tick RENAME TO monitor_wish_tick;
ALTER TABLE tidemill.monitor_setting RENAME TO monitor_wish;
ALTER TABLE tidemill.inbox RENAME COLUMN suspended TO held;

DROP INDEX tidemill.run_needs_attention;
ALTER TABLE tidemill.run DROP CONSTRAINT run_state_check;
UPDATE tidemill.run SET state = 'parked' WHERE state = 'needs_attention';
ALTER TABLE tidemill.run ADD CONSTRAINT run_state_check
    CHECK (state IN ('running', 'parked', 'succeeded', 'failed', 'cancelled', 'timed_out'));
CREATE INDEX run_parked ON tidemill.run (kind) WHERE state = 'parked';

DROP INDEX tidemill.job_throttled;
DROP INDEX tidemill.job_no_worker;
ALTER TABLE tidemill.job DROP CONSTRAINT job_state_check;
UPDATE tidemill.job SET state = CASE state WHEN 'throttled' THEN 'gated' ELSE 'unrouted' END
WHERE state IN ('throttled', 'no_worker');
ALTER TABLE tidemill.job ADD CONSTRAINT job_state_check CHECK (state IN ('ready', 'gated', 'unrouted', 'running'));
CREATE INDEX job_gated ON tidemill.job (concurrency_key, priority DESC, due_at, id) WHERE state = 'gated';
CREATE INDEX job_unrouted ON tidemill.job (task) WHERE state = 'unrouted';
