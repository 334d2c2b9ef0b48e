-- The next run of a rate key that may begin.
CREATE INDEX run_rated ON tidemill.run (rate_key, coalesce(priority, 5::smallint) DESC, id)
    WHERE rate_key IS NOT NULL AND start_at IS NOT NULL AND state = 'running';
