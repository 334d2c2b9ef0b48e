-- needs_at_least: 49
-- The next schedule that is due is found without reading all of them.
CREATE INDEX schedule_due ON tidemill.schedule (least(next_fire, check_at)) WHERE NOT paused;
