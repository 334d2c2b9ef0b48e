DROP FUNCTION tidemill.claim_limited(text, integer, bigint, text[]);
DROP FUNCTION tidemill.admit_gated(text[]);
DROP FUNCTION tidemill.with_error(json, json);
DROP TABLE tidemill.audit, tidemill.schedule, tidemill.worker_control, tidemill.worker, tidemill.queue,
    tidemill.concurrency, tidemill.unique_window, tidemill.job_history, tidemill.job;
