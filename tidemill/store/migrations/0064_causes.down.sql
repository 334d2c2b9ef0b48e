DROP INDEX IF EXISTS tidemill.job_cause, tidemill.job_history_cause, tidemill.run_cause;
