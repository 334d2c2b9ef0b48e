DROP TABLE tidemill.stream_outbox;
DELETE FROM tidemill.dead_letter WHERE sink IS NOT NULL;
ALTER TABLE tidemill.dead_letter DROP COLUMN sink;
