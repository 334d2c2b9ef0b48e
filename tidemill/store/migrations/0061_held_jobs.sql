-- needs_at_least: 49
-- The longest of the jobs that a worker runs, as it says with each renewal of its lease: the page of a worker finds them by their ids.
ALTER TABLE tidemill.worker ADD COLUMN held bigint[];
