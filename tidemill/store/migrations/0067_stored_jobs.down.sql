ALTER TABLE tidemill.queue ALTER COLUMN tokens SET DEFAULT 0;

DO $$
BEGIN
    EXECUTE replace(pg_get_functiondef('tidemill.insert_job'::regproc),
                    'SET args = insert_job.args, deadline = now() + insert_job.deadline, due_at',
                    'SET args = insert_job.args, due_at');
END $$;

ALTER TABLE tidemill.job DROP CONSTRAINT within_the_years_1_to_9999;
ALTER TABLE tidemill.run DROP CONSTRAINT within_the_years_1_to_9999;
ALTER TABLE tidemill.inbox DROP CONSTRAINT within_the_years_1_to_9999;
