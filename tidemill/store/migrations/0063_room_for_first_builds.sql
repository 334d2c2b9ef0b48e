-- needs_at_least: 49
-- A state's first build stores an intent, and then makes it current: with room for that on the same page, the second
-- write needs no new entry of an index.
ALTER TABLE tidemill.state SET (fillfactor = 45);
