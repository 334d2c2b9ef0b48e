-- The last tick of the run when it was shown: followers put what they rebuild from the journal in order with it.
ALTER TABLE tidemill.published ADD COLUMN tick bigint NOT NULL DEFAULT 0;
