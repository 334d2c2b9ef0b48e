-- A source in parts, such as the partitions of a topic: how far each has been read, and up to which moment.
CREATE TABLE tidemill.monitor_part (
    monitor  text COLLATE "C" NOT NULL,
    part     integer NOT NULL,
    position bigint NOT NULL,
    heard_at double precision,
    PRIMARY KEY (monitor, part)
) WITH (fillfactor = 50);

-- When a tick was completed, where that is later than the moment up to which the source had been read.
ALTER TABLE tidemill.monitor_tick ADD COLUMN clock double precision;
