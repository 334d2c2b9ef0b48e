-- Events of the time before a monitor, or an entity of its list, was followed: what they raise is history.
ALTER TABLE tidemill.monitor ADD COLUMN started_at double precision;
ALTER TABLE tidemill.monitor_event ADD COLUMN past boolean NOT NULL DEFAULT false;
