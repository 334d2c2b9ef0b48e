DROP INDEX tidemill.job_gated;
