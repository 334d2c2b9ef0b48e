-- States and tables get the names that the API, the command line and the docs use.

ALTER TABLE tidemill.job DROP CONSTRAINT job_state_check;
UPDATE tidemill.job SET state = CASE state WHEN 'gated' THEN 'throttled' ELSE 'no_worker' END
WHERE state IN ('gated', 'unrouted');
ALTER TABLE tidemill.job ADD CONSTRAINT job_state_check
    CHECK (state IN ('ready', 'throttled', 'no_worker', 'running'));
DROP INDEX tidemill.job_unrouted;
DROP INDEX tidemill.job_gated;
CREATE INDEX job_no_worker ON tidemill.job (task) WHERE state = 'no_worker';
CREATE INDEX job_throttled ON tidemill.job (concurrency_key, priority DESC, due_at, id) WHERE state = 'throttled';

ALTER TABLE tidemill.run DROP CONSTRAINT run_state_check;
UPDATE tidemill.run SET state = 'needs_attention' WHERE state = 'parked';
ALTER TABLE tidemill.run ADD CONSTRAINT run_state_check
    CHECK (state IN ('running', 'needs_attention', 'succeeded', 'failed', 'cancelled', 'timed_out'));
DROP INDEX tidemill.run_parked;
CREATE INDEX run_needs_attention ON tidemill.run (kind) WHERE state = 'needs_attention';

-- Messages for a run that needs attention: they are not due until it goes on.
ALTER TABLE tidemill.inbox RENAME COLUMN held TO suspended;

ALTER TABLE tidemill.monitor_wish RENAME TO monitor_setting;
ALTER INDEX tidemill.monitor_wish_tick RENAME TO monitor_setting_tick;
ALTER TABLE tidemill.monitor_part RENAME TO monitor_source_position;
ALTER TABLE tidemill.pace RENAME TO throughput;
ALTER TABLE tidemill.answer RENAME TO idempotency_key;
ALTER INDEX tidemill.answer_at RENAME TO idempotency_key_at;
ALTER TABLE tidemill.state_mark RENAME TO state_building;
ALTER TABLE tidemill.state_waiting RENAME TO backfill_state;

DROP FUNCTION tidemill.admit_gated(text[]);
-- Makes the next throttled jobs of these keys ready, in order, up to each key's limit. A key whose row another
-- transaction holds is skipped: maintenance admits its jobs later.
CREATE FUNCTION tidemill.admit_throttled(keys text[]) RETURNS integer LANGUAGE plpgsql
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
            IF NOT EXISTS (SELECT FROM tidemill.concurrency WHERE key = wanted) THEN
                INSERT INTO tidemill.concurrency (key, max)
                    SELECT wanted, coalesce(max(concurrency_max), 1) FROM tidemill.job
                    WHERE concurrency_key = wanted AND state = 'throttled' HAVING count(*) > 0
                    ON CONFLICT (key) DO NOTHING;
            END IF;
            SELECT max INTO most FROM tidemill.concurrency WHERE key = wanted FOR UPDATE;
            WITH let_in AS (
                UPDATE tidemill.job SET state = 'ready', note = NULL WHERE id = ANY (ARRAY(
                    SELECT id FROM tidemill.job
                    WHERE concurrency_key = wanted AND state = 'throttled' AND due_at <= now()
                    ORDER BY priority DESC, due_at, id
                    LIMIT greatest(0, coalesce(most, 0) - (
                        SELECT count(*) FROM tidemill.job
                        WHERE concurrency_key = wanted AND state IN ('ready', 'running', 'no_worker')))))
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
