-- The messages that a job, run or state has published.
CREATE INDEX event_log_follows ON tidemill.event_log ((origins[1])) WHERE origins IS NOT NULL;
