-- Every limit is called max_concurrency, in columns as in options.

ALTER TABLE tidemill.job RENAME COLUMN concurrency_max TO max_concurrency;
ALTER TABLE tidemill.job_history RENAME COLUMN concurrency_max TO max_concurrency;
ALTER TABLE tidemill.worker RENAME COLUMN concurrency TO max_concurrency;
ALTER TABLE tidemill.concurrency RENAME TO concurrency_key;
ALTER TABLE tidemill.concurrency_key RENAME COLUMN max TO max_concurrency;

DO $$
BEGIN
    EXECUTE replace(replace(replace(replace(
        pg_get_functiondef('tidemill.admit_throttled(text[])'::regprocedure),
        'tidemill.concurrency ', 'tidemill.concurrency_key '),
        'concurrency_max', 'max_concurrency'),
        '(key, max)', '(key, max_concurrency)'),
        'SELECT max INTO', 'SELECT max_concurrency INTO');
END $$;
