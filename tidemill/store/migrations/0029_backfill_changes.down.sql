DROP TRIGGER change_backfill ON tidemill.monitor_entity;
