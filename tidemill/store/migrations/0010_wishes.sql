-- What people have set for a monitor, and from which tick on it counts: a replay comes to the same alerts with it.
CREATE TABLE tidemill.monitor_wish (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    monitor text COLLATE "C" NOT NULL,
    tick    bigint NOT NULL,
    entity  text COLLATE "C", -- whose labels; NULL for the triggers that are switched off
    before  json NOT NULL,
    after   json NOT NULL,
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX monitor_wish_tick ON tidemill.monitor_wish (monitor, tick);
