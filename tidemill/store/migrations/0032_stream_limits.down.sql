CREATE INDEX stream_retry_due ON tidemill.stream_retry (stream, due_at);
DROP INDEX tidemill.stream_retry_source;
ALTER TABLE tidemill.stream_control DROP COLUMN burst;
DROP TABLE tidemill.stream_limit;
