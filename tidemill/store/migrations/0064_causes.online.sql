-- What followed from a job, a batch or a run. Rows without such an origin are not in it. Every insert and claim evaluates the
-- condition, so it first compares the beginning: what a program or a caller of the SQL functions enqueues follows from no job.
CREATE INDEX job_cause ON tidemill.job
    ((coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'), 'r' || (origin ->> 'run'))))
    WHERE origin::text NOT LIKE '{"by":"app %' AND origin::text NOT LIKE '{"by" : "SQL by %'
      AND origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%', '%"run"%']);
CREATE INDEX job_history_cause ON tidemill.job_history
    ((coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'), 'r' || (origin ->> 'run'))))
    WHERE origin::text NOT LIKE '{"by":"app %' AND origin::text NOT LIKE '{"by" : "SQL by %'
      AND origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%', '%"run"%']);
CREATE INDEX run_cause ON tidemill.run
    ((coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'), 'r' || (origin ->> 'run'))))
    WHERE origin::text NOT LIKE '{"by":"app %' AND origin::text NOT LIKE '{"by" : "SQL by %'
      AND origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%', '%"run"%']);
