-- needs_at_least: 49
-- The number of a change that is made elsewhere at the same time: its migration takes the place of this one.
DROP TABLE IF EXISTS tidemill.reserved;
