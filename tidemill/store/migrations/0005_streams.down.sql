DROP VIEW tidemill.log_message;
DROP TABLE tidemill.stream_status, tidemill.stream_control, tidemill.dead_letter, tidemill.stream_attempt,
    tidemill.stream_retry, tidemill.source_cursor, tidemill.log_range, tidemill.log_group, tidemill.event_log;
DROP SEQUENCE tidemill.event_log_id_seq;
