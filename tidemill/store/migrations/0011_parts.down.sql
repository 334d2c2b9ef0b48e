ALTER TABLE tidemill.monitor_tick DROP COLUMN clock;
DROP TABLE tidemill.monitor_part;
