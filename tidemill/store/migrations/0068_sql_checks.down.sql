DO $$
BEGIN
    EXECUTE regexp_replace(pg_get_functiondef('tidemill.insert_job'::regproc),
        '    IF least\(insert_job\.delay.*?END IF;\n', '');
    EXECUTE regexp_replace(pg_get_functiondef('tidemill.enqueue_batch'::regproc),
        '    PERFORM tidemill.refuse_if\(.*?\n(?=    INSERT INTO tidemill.batch \()', '');
    EXECUTE replace(regexp_replace(pg_get_functiondef('tidemill.start'::regproc),
        '    PERFORM tidemill.refuse_if\(.*?\n(?=    IF rated IS NOT NULL AND usual)', ''), ', ''unchecked'', true)', ')');
    EXECUTE regexp_replace(pg_get_functiondef('tidemill.send'::regproc),
        '    PERFORM tidemill.refuse_if\(.*?\n(?=    -- The event classes)', '');
    EXECUTE regexp_replace(pg_get_functiondef('tidemill.publish'::regproc),
        '    PERFORM tidemill.refuse_if\(.*?\n(?=    INSERT INTO tidemill.event_log)', '');
END $$;

DROP FUNCTION tidemill.refuse_if, tidemill.is_name;
