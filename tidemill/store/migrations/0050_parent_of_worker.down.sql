ALTER TABLE tidemill.worker DROP COLUMN parent_pid;
