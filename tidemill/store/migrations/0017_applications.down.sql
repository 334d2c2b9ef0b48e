DO $$
BEGIN
    IF 'tidemill.' <> 'installation.' THEN -- a further application's schema gets its own tables back, empty
        CREATE TABLE tidemill.audit (LIKE installation.audit INCLUDING ALL);
        ALTER TABLE tidemill.audit DROP COLUMN application;
        CREATE TABLE tidemill.host (LIKE installation.host INCLUDING ALL);
        CREATE TABLE tidemill.host_sample (LIKE installation.host_sample INCLUDING ALL);
        CREATE TABLE tidemill.token (LIKE installation.token INCLUDING ALL);
        CREATE TABLE tidemill.session (LIKE installation.session INCLUDING ALL);
    ELSE
        DROP TRIGGER change_insert ON tidemill.audit;
        DROP TRIGGER change_insert ON tidemill.host;
        DROP TRIGGER change_update ON tidemill.host;
        DROP FUNCTION tidemill.note_shared;
        ALTER TABLE tidemill.audit DROP COLUMN application;
        DROP TABLE tidemill.application;
    END IF;
    CREATE TRIGGER change_insert AFTER INSERT ON tidemill.audit REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind('audit');
    CREATE TRIGGER change_insert AFTER INSERT ON tidemill.host REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind('hosts');
    CREATE TRIGGER change_update AFTER UPDATE ON tidemill.host REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_kind('hosts');
END $$;
