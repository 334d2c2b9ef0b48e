-- A schedule belongs to the application whose schema it is in, as everything else does.
ALTER TABLE tidemill.schedule DROP COLUMN app;
