-- The parts of a source's limits that the dispatchers of a stream use. A part is leased: after `until` it is free again.
CREATE UNLOGGED TABLE tidemill.stream_limit (
    stream       text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    dispatcher   uuid NOT NULL,
    wanted_rate  double precision NOT NULL,
    rate         double precision NOT NULL,
    wanted_slots integer NOT NULL,
    slots        integer NOT NULL,
    until        timestamptz NOT NULL,
    PRIMARY KEY (stream, source, dispatcher)
) WITH (fillfactor = 20);

ALTER TABLE tidemill.stream_control ADD COLUMN burst double precision CHECK (burst >= 1);

-- Stored messages are claimed source by source, so that those of a limited one keep no others waiting.
CREATE INDEX stream_retry_source ON tidemill.stream_retry (stream, source, due_at);
DROP INDEX tidemill.stream_retry_due;
