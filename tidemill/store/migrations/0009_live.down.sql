DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT tgname, tgrelid::regclass AS tab FROM pg_trigger
               WHERE tgname LIKE 'change\_%' AND NOT tgisinternal
                 AND tgrelid IN ('tidemill.state'::regclass, 'tidemill.state_build'::regclass,
                     'tidemill.state_failure'::regclass, 'tidemill.state_control'::regclass,
                     'tidemill.stream_status'::regclass, 'tidemill.stream_control'::regclass,
                     'tidemill.dead_letter'::regclass, 'tidemill.monitor'::regclass, 'tidemill.monitor_tick'::regclass,
                     'tidemill.monitor_problem'::regclass, 'tidemill.alert'::regclass)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', one.tgname, one.tab);
    END LOOP;
END $$;
DROP INDEX tidemill.state_invalid;
DROP TABLE tidemill.state_backfill;
DROP FUNCTION tidemill.note_monitors, tidemill.note_plainly;
