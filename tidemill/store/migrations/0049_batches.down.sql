DROP INDEX tidemill.job_history_batch;
DROP INDEX tidemill.job_batch;
ALTER TABLE tidemill.job_history DROP COLUMN batch_id;
ALTER TABLE tidemill.job DROP COLUMN batch_id;
DROP TABLE tidemill.batch_count;
DROP TABLE tidemill.batch;
