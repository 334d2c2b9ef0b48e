-- Ids of messages whose work has succeeded, for sources that are told what identifies a message. All dispatchers of a
-- stream see them; those older than the stream's window are deleted.
CREATE TABLE tidemill.stream_seen (
    stream text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    id     uuid NOT NULL, -- a hash of the message's id, which may be long
    at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, source, id)
);
CREATE INDEX stream_seen_age ON tidemill.stream_seen (stream, at);
