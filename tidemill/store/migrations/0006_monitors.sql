-- Monitors: the log of what was observed, where each entity stands in it, and the alerts that came of it.

-- One row per monitor. `tick` is the last tick that is complete; what arrives now belongs to the next one.
CREATE TABLE tidemill.monitor (
    name         text COLLATE "C" PRIMARY KEY,
    version      text NOT NULL, -- of the fold whose states count
    tick         bigint NOT NULL DEFAULT 0,
    tick_at      double precision NOT NULL DEFAULT 0,
    cursor_at    double precision,
    cursor_id    text,
    cursor_token text, -- where the source stands, in its own words
    lateness     double precision NOT NULL DEFAULT 0,
    events       bigint NOT NULL DEFAULT 0,
    duplicates   bigint NOT NULL DEFAULT 0,
    ignored      bigint NOT NULL DEFAULT 0,
    late         bigint NOT NULL DEFAULT 0,
    resets       bigint NOT NULL DEFAULT 0,
    paused       boolean NOT NULL DEFAULT false,
    off          text[] NOT NULL DEFAULT '{}', -- triggers that somebody has switched off
    keep         double precision NOT NULL DEFAULT 7776000, -- seconds that its events stay
    status       json,
    seen_at      timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 20);

-- Who follows which share of a monitor's entities. The owner of share 0 also asks the source.
CREATE TABLE tidemill.monitor_shard (
    monitor text COLLATE "C" NOT NULL,
    shard   smallint NOT NULL,
    owner   bigint,
    PRIMARY KEY (monitor, shard)
) WITH (fillfactor = 50);

-- What was observed, by the time at which it happened. Times are seconds since 1970.
CREATE TABLE tidemill.monitor_event (
    monitor   text COLLATE "C" NOT NULL,
    entity    text COLLATE "C" NOT NULL,
    source_id text COLLATE "C" NOT NULL,
    at        double precision NOT NULL,
    tick      bigint NOT NULL,
    data      json NOT NULL
) PARTITION BY RANGE (at);
CREATE UNIQUE INDEX monitor_event_source ON tidemill.monitor_event (monitor, source_id, at);
CREATE INDEX monitor_event_entity ON tidemill.monitor_event (monitor, entity, at);
-- Events stay in one piece up to what a page holds: to compress them would take longer than to write them.
CREATE TABLE tidemill.monitor_event_default PARTITION OF tidemill.monitor_event DEFAULT
    WITH (toast_tuple_target = 8160);

-- Ticks that changed something, with their time: the same ticks give the same alerts again.
CREATE TABLE tidemill.monitor_tick (
    monitor text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    at      double precision NOT NULL,
    PRIMARY KEY (monitor, number)
);
CREATE INDEX monitor_tick_at ON tidemill.monitor_tick (monitor, at);

-- An entity: whether it is followed, and its state with the position in the log that it stands at.
CREATE TABLE tidemill.monitor_entity (
    monitor  text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL,
    shard    smallint NOT NULL,
    active   boolean NOT NULL DEFAULT true,
    head     bigint NOT NULL DEFAULT 0, -- the newest tick that brought events
    folded   bigint NOT NULL DEFAULT 0, -- the newest tick whose events are in the state
    fresh_at double precision,          -- no event that is not is older
    at       double precision,          -- the newest event that is
    id       text COLLATE "C",
    last_at  double precision,          -- its last sign of life
    count    bigint NOT NULL DEFAULT 0,
    due_at   double precision,          -- look at it again then, whatever happens
    version  text,
    state    json,
    marks    json,
    labels   json,
    problem  text,
    backfill json,
    added_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (monitor, entity)
) WITH (fillfactor = 70);
CREATE INDEX monitor_entity_dirty ON tidemill.monitor_entity (monitor, shard) WHERE head > folded;
CREATE INDEX monitor_entity_due ON tidemill.monitor_entity (monitor, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX monitor_entity_backfill ON tidemill.monitor_entity (monitor, added_at) WHERE backfill IS NOT NULL;

-- Older states of an entity, from which it is folded anew when an event comes late.
CREATE TABLE tidemill.monitor_checkpoint (
    monitor text COLLATE "C" NOT NULL,
    entity  text COLLATE "C" NOT NULL,
    slot    smallint NOT NULL,
    version text NOT NULL,
    at      double precision NOT NULL,
    id      text COLLATE "C" NOT NULL,
    count   bigint NOT NULL,
    state   json NOT NULL,
    PRIMARY KEY (monitor, entity, slot)
) WITH (fillfactor = 70);

-- States of the next version of a fold, until it has caught up.
CREATE TABLE tidemill.monitor_rebuild (
    monitor text COLLATE "C" NOT NULL,
    entity  text COLLATE "C" NOT NULL,
    version text NOT NULL,
    folded  bigint NOT NULL,
    at      double precision,
    id      text COLLATE "C",
    count   bigint NOT NULL,
    state   json,
    PRIMARY KEY (monitor, entity, version)
);

-- What went wrong in the code of a fold, a trigger or a source: one row per place and entity.
CREATE TABLE tidemill.monitor_problem (
    monitor  text COLLATE "C" NOT NULL,
    place    text COLLATE "C" NOT NULL,
    entity   text COLLATE "C" NOT NULL DEFAULT '',
    error    text NOT NULL,
    count    bigint NOT NULL DEFAULT 1,
    first_at timestamptz NOT NULL DEFAULT now(),
    last_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (monitor, place, entity)
);

-- Alerts, open and resolved. `key` names the occurrence of a momentary one.
CREATE TABLE tidemill.alert (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    monitor     text COLLATE "C" NOT NULL,
    trigger     text COLLATE "C" NOT NULL,
    entity      text COLLATE "C" NOT NULL,
    kind        text COLLATE "C" NOT NULL CHECK (kind IN ('sustained', 'momentary', 'absent')),
    key         text COLLATE "C",
    severity    text COLLATE "C" NOT NULL,
    started_at  timestamptz NOT NULL, -- when what it tells of began
    opened_at   timestamptz NOT NULL, -- the time of the tick that noticed
    tick        bigint NOT NULL,
    resolved_at timestamptz,
    resolution  text,
    acked_at    timestamptz,
    acked_by    text,
    realert     double precision, -- how long after its acknowledgement it comes back, and counted from when
    realert_from text NOT NULL DEFAULT 'ack',
    realert_at  timestamptz,
    again_after bigint, -- the alert that it follows, where the condition went on after an acknowledgement
    owner       text,
    note        text,
    silence     bigint,
    explain     json
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX alert_open ON tidemill.alert (monitor, entity, trigger) WHERE resolved_at IS NULL;
CREATE UNIQUE INDEX alert_once ON tidemill.alert (monitor, trigger, entity, key) WHERE key IS NOT NULL;
CREATE INDEX alert_realert ON tidemill.alert (monitor, realert_at) WHERE resolved_at IS NULL AND realert_at IS NOT NULL;
CREATE INDEX alert_feed ON tidemill.alert (monitor, opened_at);

-- Everything that happened to an alert.
CREATE TABLE tidemill.alert_history (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alert  bigint NOT NULL,
    at     timestamptz NOT NULL,
    action text COLLATE "C" NOT NULL,
    who    text NOT NULL,
    detail text
);
CREATE INDEX alert_history_alert ON tidemill.alert_history (alert, id);

-- Alerts of which nobody is told for a time.
CREATE TABLE tidemill.silence (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    monitor   text COLLATE "C" NOT NULL,
    matchers  json NOT NULL,
    starts_at timestamptz NOT NULL DEFAULT now(),
    ends_at   timestamptz NOT NULL,
    by        text NOT NULL,
    comment   text NOT NULL DEFAULT ''
);
CREATE INDEX silence_end ON tidemill.silence (monitor, ends_at);

-- Who has to be told what: written with the alert, sent by a job, and marked when it was sent.
CREATE TABLE tidemill.alert_notice (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    alert   bigint NOT NULL,
    monitor text COLLATE "C" NOT NULL,
    channel text COLLATE "C" NOT NULL,
    what    text COLLATE "C" NOT NULL CHECK (what IN ('opened', 'again', 'resolved')),
    batch   text COLLATE "C" NOT NULL,
    message text COLLATE "C", -- the message that carries it, and is sent again under the same name
    sent_at timestamptz,
    outcome text,
    UNIQUE (alert, channel, what)
);
CREATE INDEX alert_notice_waiting ON tidemill.alert_notice (monitor, channel, batch) WHERE sent_at IS NULL;
