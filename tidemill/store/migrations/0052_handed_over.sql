-- needs_at_least: 49
-- What messages of streams have handed over, for people: one row for each job, event, state and so on.
CREATE TABLE tidemill.stream_handed_over (
    at         timestamptz NOT NULL DEFAULT now(),
    stream     text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    place      text COLLATE "C" NOT NULL,
    message_id text COLLATE "C",
    kind       text NOT NULL, -- job, event, state, log, sink or sql
    name       text, -- the task, pipeline, topic, sink or statement
    id         text -- of a job or run; the path of a state
) PARTITION BY RANGE (at);
CREATE INDEX stream_handed_over_place ON tidemill.stream_handed_over (stream, source, place);
CREATE INDEX stream_handed_over_message ON tidemill.stream_handed_over (message_id) WHERE message_id IS NOT NULL;
CREATE TABLE tidemill.stream_handed_over_default PARTITION OF tidemill.stream_handed_over DEFAULT;
