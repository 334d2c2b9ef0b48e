-- What followed from a job or a batch. Rows without such an origin are not in it: an insert compares 60 bytes of text.
CREATE INDEX job_follows ON tidemill.job
    ((coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'))))
    WHERE origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%']);
CREATE INDEX job_history_follows ON tidemill.job_history
    ((coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'))))
    WHERE origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%']);
CREATE INDEX run_follows ON tidemill.run
    ((coalesce(origin ->> 'retry_of', origin ->> 'parent', 'b' || (origin ->> 'batch'))))
    WHERE origin::text LIKE ANY (ARRAY['%"parent"%', '%"retry_of"%', '%"batch"%']);
-- The messages that a job, run or state has published.
CREATE INDEX event_log_follows ON tidemill.event_log ((origins[1])) WHERE origins IS NOT NULL;
