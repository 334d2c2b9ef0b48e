ALTER TABLE tidemill.dead_letter DROP COLUMN history;
ALTER TABLE tidemill.stream_attempt DROP COLUMN history;
ALTER TABLE tidemill.stream_retry DROP COLUMN history;
DROP TABLE tidemill.stream_commit;
