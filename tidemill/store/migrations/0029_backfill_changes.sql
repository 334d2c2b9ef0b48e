-- Progress and end of an entity's backfill are changes of its monitor: a program that waits for them need not poll.
CREATE TRIGGER change_backfill AFTER UPDATE OF backfill ON tidemill.monitor_entity
    FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_plainly('monitors');
