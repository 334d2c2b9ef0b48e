ALTER TABLE tidemill.worker DROP COLUMN lost_threads;
