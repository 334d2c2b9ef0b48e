-- The event classes that a run worker's process has defined: an event of another class is refused before it is sent.
ALTER TABLE tidemill.worker ADD COLUMN events text[];
