CREATE OR REPLACE FUNCTION tidemill.note_change(changed_what text, changed_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ms bigint := extract(epoch FROM clock_timestamp()) * 1000;
BEGIN
    INSERT INTO tidemill.change (what, keys) VALUES (changed_what, changed_keys);
    IF (SELECT last_value FROM tidemill.change_rung) < ms - 50 THEN
        PERFORM setval('tidemill.change_rung', ms);
        PERFORM pg_notify('tidemill_changes', '');
    END IF;
END $$;
