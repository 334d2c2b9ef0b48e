DO $$
DECLARE
    claim regprocedure;
BEGIN
    FOREACH claim IN ARRAY ARRAY['tidemill.claim_limited(text, integer, bigint, text[], boolean)',
                                 'tidemill.claim_limited(text, integer, bigint, text[])']::regprocedure[] LOOP
        EXECUTE replace(pg_get_functiondef(claim), 'r.fair_key IS NULL AND r.suspicions = 0', 'r.suspicions = 0');
    END LOOP;
    EXECUTE replace(replace(replace(
        pg_get_functiondef('tidemill.admit_throttled(text[])'::regprocedure),
        'queue || coalesce(chr(10) || priority || fair_key, '''') AS wake', 'queue'),
        'SELECT DISTINCT wake FROM let_in) AS wakes', 'SELECT DISTINCT queue FROM let_in) AS queues'),
        ', wake)', ', queue)');
END $$;

DROP FUNCTION tidemill.take_tokens(text, integer);
DROP TABLE tidemill.fair_weight;
DROP INDEX tidemill.job_fair;
DROP INDEX tidemill.job_ready;
ALTER TABLE tidemill.job_history DROP COLUMN fair_key;
ALTER TABLE tidemill.job DROP COLUMN fair_key;
CREATE INDEX job_ready ON tidemill.job (queue, priority, due_at, id) WHERE state = 'ready';
