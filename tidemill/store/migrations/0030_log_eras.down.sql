ALTER TABLE tidemill.event_log ALTER COLUMN xid SET DEFAULT pg_current_xact_id();
DROP FUNCTION tidemill.begin_log_era(), tidemill.log_base(), tidemill.log_cluster();
DROP SEQUENCE tidemill.log_home;
