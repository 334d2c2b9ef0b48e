-- needs_at_least: 49
-- What work follows from: messages, events and states name the work that made them, as `tidemill explain` does.
ALTER TABLE tidemill.event_log ADD COLUMN origins text[]; -- one for each message, or one for all of them
ALTER TABLE tidemill.monitor_event ADD COLUMN origin text;
ALTER TABLE tidemill.stream_handed_over ADD COLUMN origin text;

-- The work that wrote a file of a pipeline from outside, and the trace that builds from any of its files continue.
CREATE TABLE tidemill.state_origin (
    pipeline text COLLATE "C" NOT NULL,
    path     text COLLATE "C" NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    origin   text,
    trace    text,
    PRIMARY KEY (pipeline, path)
);
