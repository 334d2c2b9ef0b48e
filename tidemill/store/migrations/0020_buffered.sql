-- The events that a run has kept because no step and no wait has taken them yet.

ALTER TABLE tidemill.run ADD COLUMN buffered json;
