-- Positions of the log that mean the same in every cluster. A position is (xid, id), and a cluster counts transactions
-- from its own beginning: in another one, new messages would sort before those that were restored. So `xid` is
-- era * 2^48 + transaction id, and every cluster that the log is moved to begins a new era.

-- The era (the upper bits) and a hash of the cluster that it belongs to (48 bits). A sequence, since it is read as it is
-- now and not as a snapshot shows it: a writer that took an era from an old snapshot would be overtaken.
CREATE SEQUENCE tidemill.log_home MINVALUE 0 START 0;

-- A hash of this cluster, read once a session. It stays when a standby is promoted, and changes with dump and restore.
CREATE FUNCTION tidemill.log_cluster() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    known text := current_setting('tidemill_log.cluster', true);
BEGIN
    IF coalesce(known, '') = '' THEN
        SELECT hashint8extended(system_identifier, 0) & 281474976710655 INTO known FROM pg_control_system();
        PERFORM set_config('tidemill_log.cluster', known, false);
    END IF;
    RETURN known::bigint;
END $$;

-- Where the positions of this cluster begin. The first call in another cluster begins its era.
CREATE FUNCTION tidemill.log_base() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    cluster bigint := tidemill.log_cluster();
    home    bigint;
BEGIN
    SELECT last_value INTO home FROM tidemill.log_home;
    IF home & 281474976710655 <> cluster THEN
        PERFORM pg_advisory_lock(hashtextextended('tidemill.log_home', 0));
        SELECT last_value INTO home FROM tidemill.log_home;
        IF home & 281474976710655 <> cluster THEN
            home := setval('tidemill.log_home', (((home >> 48) + 1) << 48) | cluster);
        END IF;
        PERFORM pg_advisory_unlock(hashtextextended('tidemill.log_home', 0));
    END IF;
    RETURN (home >> 48) << 48;
END $$;

-- Begin an era after every position that is known here: for a group that is ahead of the log. The lock waits for the
-- writers of the era before, so that no reader passes them.
CREATE FUNCTION tidemill.begin_log_era() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    era bigint;
BEGIN
    LOCK TABLE tidemill.event_log IN SHARE ROW EXCLUSIVE MODE;
    SELECT max(known) + 1 INTO era FROM (
        SELECT last_value >> 48 FROM tidemill.log_home
        UNION ALL SELECT max(xid::text::bigint) >> 48 FROM tidemill.log_group
        UNION ALL SELECT max(to_xid::text::bigint) >> 48 FROM tidemill.log_range
        UNION ALL SELECT max(xid::text::bigint) >> 48 FROM tidemill.event_log) AS eras (known);
    PERFORM setval('tidemill.log_home', (era << 48) | tidemill.log_cluster());
    RETURN era;
END $$;

SELECT setval('tidemill.log_home', tidemill.log_cluster());
ALTER TABLE tidemill.event_log
    ALTER COLUMN xid SET DEFAULT ((tidemill.log_base() + pg_current_xact_id()::text::bigint)::text::xid8);
