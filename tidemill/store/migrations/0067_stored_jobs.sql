-- needs_at_least: 49
-- Stored jobs are what was asked for: moments that can be read again, the last deadline, and limits that begin with a burst.

-- Moments that Python does not know, such as `infinity`, are refused: one such job would stop every process that reads it.
ALTER TABLE tidemill.job ADD CONSTRAINT within_the_years_1_to_9999
    CHECK (due_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z'
           AND deadline BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z') NOT VALID;
ALTER TABLE tidemill.run ADD CONSTRAINT within_the_years_1_to_9999
    CHECK (start_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z'
           AND deadline BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z') NOT VALID;
ALTER TABLE tidemill.inbox ADD CONSTRAINT within_the_years_1_to_9999
    CHECK (due_at BETWEEN '0001-01-01 00:00Z' AND '9999-12-31 23:59:59Z') NOT VALID;

-- A debounced job has the deadline of its last call, as it has its arguments. The rest of the function stays as it is.
DO $$
BEGIN
    EXECUTE replace(pg_get_functiondef('tidemill.insert_job'::regproc), 'SET args = insert_job.args, due_at',
                    'SET args = insert_job.args, deadline = now() + insert_job.deadline, due_at');
END $$;

-- The bucket of a queue is full when its limit is new, so that its first jobs start at once, as after a quiet time.
ALTER TABLE tidemill.queue ALTER COLUMN tokens SET DEFAULT 1e9;
