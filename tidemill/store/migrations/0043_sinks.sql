-- What plans handed over to sinks, until the sink has it. Items of a key are sent in the order of their ids.
CREATE TABLE tidemill.stream_outbox (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream   text COLLATE "C" NOT NULL,
    sink     text COLLATE "C" NOT NULL,
    item     text NOT NULL, -- identifies it at the receiver
    source   text NOT NULL,
    place    text NOT NULL, -- which message of the source has handed it over
    plan     text NOT NULL,
    key      text,
    headers  json,
    payload  bytea NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    attempts integer NOT NULL DEFAULT 0, -- how often the receiver has refused it
    due_at   timestamptz, -- unset: at once
    error    text
);
CREATE INDEX stream_outbox_order ON tidemill.stream_outbox (stream, sink, id);
CREATE INDEX stream_outbox_message ON tidemill.stream_outbox (stream, place);

-- A dead letter of a sink is an item that was not taken; otherwise it is a message of a source.
ALTER TABLE tidemill.dead_letter ADD COLUMN sink text COLLATE "C";
