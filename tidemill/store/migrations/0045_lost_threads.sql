-- How many threads of a process have not come back, for metrics and the list of workers.
ALTER TABLE tidemill.worker ADD COLUMN lost_threads integer NOT NULL DEFAULT 0;
