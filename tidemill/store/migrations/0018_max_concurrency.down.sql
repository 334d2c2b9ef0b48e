DO $$
BEGIN
    EXECUTE replace(replace(replace(replace(
        pg_get_functiondef('tidemill.admit_throttled(text[])'::regprocedure),
        'SELECT max_concurrency INTO', 'SELECT max INTO'),
        '(key, max_concurrency)', '(key, max)'),
        'max_concurrency', 'concurrency_max'),
        'tidemill.concurrency_key ', 'tidemill.concurrency ');
END $$;

ALTER TABLE tidemill.concurrency_key RENAME COLUMN max_concurrency TO max;
ALTER TABLE tidemill.concurrency_key RENAME TO concurrency;
ALTER TABLE tidemill.worker RENAME COLUMN max_concurrency TO concurrency;
ALTER TABLE tidemill.job_history RENAME COLUMN max_concurrency TO concurrency_max;
ALTER TABLE tidemill.job RENAME COLUMN max_concurrency TO concurrency_max;
