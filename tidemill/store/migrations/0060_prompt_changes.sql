-- needs_at_least: 49
-- The first few changes after a quiet time are each announced at once, so that a wait learns of a job's end although its
-- start was announced just before; many changes still are announced every few milliseconds only. `change_rung` has the
-- moment at which all announcements so far would have been due at one every 5 ms; they may be 15 ms early.
CREATE OR REPLACE FUNCTION tidemill.note_change(changed_what text, changed_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ms  bigint := extract(epoch FROM clock_timestamp()) * 1000;
    due bigint;
BEGIN
    INSERT INTO tidemill.change (what, keys) VALUES (changed_what, changed_keys);
    SELECT greatest(last_value, ms) INTO due FROM tidemill.change_rung;
    -- A clock that was set back must not silence it.
    IF due <= ms + 15 OR due > ms + 1000 THEN
        PERFORM setval('tidemill.change_rung', CASE WHEN due > ms + 1000 THEN ms ELSE due + 5 END);
        PERFORM pg_notify('tidemill_changes', '');
    END IF;
END $$;
