-- Streams: the log that is the default source, where each source stands, messages that wait for another attempt,
-- and those that were given up.

-- The append-only log, one partition a day. Nothing is updated per message: readers take ranges of it.
-- Its order is (xid, id): a reader that stays below the oldest running transaction misses no row.
-- Messages that are appended together share a row, for an entry in the index costs more than a message does.
CREATE SEQUENCE tidemill.event_log_id_seq CACHE 500;
CREATE TABLE tidemill.event_log (
    id       bigint NOT NULL DEFAULT nextval('tidemill.event_log_id_seq'),
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at       timestamptz NOT NULL DEFAULT now(),
    topic    text COLLATE "C" NOT NULL,
    keys     text[], -- unset: no message has one
    headers  text[], -- each as JSON; unset: no message has any
    payloads bytea[] NOT NULL,
    messages integer GENERATED ALWAYS AS (cardinality(payloads)) STORED CHECK (messages BETWEEN 1 AND 1024)
) PARTITION BY RANGE (at);
ALTER TABLE tidemill.event_log ALTER COLUMN payloads SET STORAGE EXTERNAL; -- compressing would cost more than storing
CREATE INDEX event_log_order ON tidemill.event_log (topic, xid, id);
CREATE TABLE tidemill.event_log_default PARTITION OF tidemill.event_log DEFAULT;

-- The log for people: one message a line.
CREATE VIEW tidemill.log_message AS
SELECT e.topic, e.id * 1024 + m.number - 1 AS position, e.at, m.key, m.headers::json AS headers, m.payload
FROM tidemill.event_log AS e,
     unnest(e.payloads, e.keys, e.headers) WITH ORDINALITY AS m (payload, key, headers, number);

-- How far a consumer group has taken a topic of the log.
CREATE TABLE tidemill.log_group (
    name  text COLLATE "C" NOT NULL,
    topic text COLLATE "C" NOT NULL,
    xid   xid8 NOT NULL DEFAULT '0',
    id    bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (name, topic)
) WITH (fillfactor = 20);

-- Ranges that are taken and not yet finished: after (from), up to and with (to), but for those done already.
CREATE TABLE tidemill.log_range (
    number      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name        text COLLATE "C" NOT NULL,
    topic       text COLLATE "C" NOT NULL,
    from_xid    xid8 NOT NULL,
    from_id     bigint NOT NULL,
    to_xid      xid8 NOT NULL,
    to_id       bigint NOT NULL,
    done        bigint[] NOT NULL DEFAULT '{}',
    owner       uuid NOT NULL,
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
CREATE INDEX log_range_group ON tidemill.log_range (name, topic);

-- Where a source stands that cannot remember it itself, or whose work is stored here: up to `position` all is done.
-- Only the owner moves it; who takes a partition over becomes its owner and fences off the one before.
CREATE TABLE tidemill.source_cursor (
    stream   text COLLATE "C" NOT NULL,
    source   text COLLATE "C" NOT NULL,
    part     text COLLATE "C" NOT NULL,
    position bigint, -- unset: nothing is done yet
    note     text, -- what the source calls this position, where that is not a number
    done     bigint[] NOT NULL DEFAULT '{}',
    owner    uuid NOT NULL,
    moved_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, source, part)
) WITH (fillfactor = 20);

-- Messages that wait for another attempt; their source no longer holds them.
CREATE TABLE tidemill.stream_retry (
    id            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    stream        text COLLATE "C" NOT NULL,
    source        text COLLATE "C" NOT NULL,
    place         text NOT NULL, -- which message of the source it was
    due_at        timestamptz NOT NULL,
    claimed_by    uuid,
    claimed_until timestamptz,
    attempts      integer NOT NULL,
    losses        integer NOT NULL DEFAULT 0,
    at            timestamptz NOT NULL,
    deadline      timestamptz,
    message_id    text,
    key           bytea,
    headers       json,
    plans         text[],
    error         text,
    payload       bytea NOT NULL
);
CREATE INDEX stream_retry_due ON tidemill.stream_retry (stream, due_at);

-- How often a message was tried that stays with its source, since others of its key wait behind it.
CREATE TABLE tidemill.stream_attempt (
    stream   text COLLATE "C" NOT NULL,
    source   text COLLATE "C" NOT NULL,
    place    text NOT NULL, -- which message of the source it is
    due_at   timestamptz NOT NULL,
    attempts integer NOT NULL,
    losses   integer NOT NULL,
    plans    text[],
    error    text NOT NULL,
    PRIMARY KEY (stream, source, place)
) WITH (fillfactor = 50);

-- Messages that were given up, with everything needed to look at them and to try them again.
CREATE TABLE tidemill.dead_letter (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    buried_at  timestamptz NOT NULL DEFAULT now(),
    stream     text COLLATE "C" NOT NULL,
    source     text COLLATE "C" NOT NULL,
    place      text NOT NULL,
    why        text COLLATE "C" NOT NULL, -- failed, undecodable, lost
    attempts   integer NOT NULL,
    at         timestamptz NOT NULL,
    message_id text,
    key        bytea,
    headers    json,
    plans      text[],
    kind       text,
    error      text NOT NULL,
    payload    bytea NOT NULL
);
CREATE INDEX dead_letter_stream ON tidemill.dead_letter (stream, id);

-- What operators want: of a stream (source '') or of a source. Unset means as declared.
CREATE TABLE tidemill.stream_control (
    stream  text COLLATE "C" NOT NULL,
    source  text COLLATE "C" NOT NULL DEFAULT '',
    mode    text CHECK (mode IN ('run', 'drain')),
    weight  double precision CHECK (weight > 0),
    max_qps double precision CHECK (max_qps >= 0), -- 0 for no limit
    enabled boolean,
    by      text NOT NULL,
    at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (stream, source)
);

-- What each dispatcher last told of itself.
CREATE TABLE tidemill.stream_status (
    dispatcher uuid PRIMARY KEY,
    stream     text COLLATE "C" NOT NULL,
    host       text NOT NULL,
    pid        integer NOT NULL,
    seen_at    timestamptz NOT NULL DEFAULT now(),
    status     json NOT NULL
) WITH (fillfactor = 20);
