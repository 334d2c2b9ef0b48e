-- Applications are apart: each has tables of its own, and what belongs to the whole installation exists once.
--
-- Considered were a column `application` in every table with its indexes, and a small integer in its place. Both cost
-- something per row and index entry, touch every statement, and one forgotten condition mixes two applications up. A
-- schema per application costs nothing per row and claim, keeps statements and plans as they are, and a statement cannot
-- reach another application's rows. So the whole chain runs once per application:
--
--   * The first application of an installation has its tables in the installation's schema (the setting `schema`). It
--     adopts the rows from before this migration, and an installation with one application looks as it always did.
--   * Each further application has them in `<schema>_<application>`.
--   * `installation.application` says which is where. The installation's schema alone has that table and the tables
--     of tokens, sessions, audit entries and hosts.
--
-- Processes look the schema up when they connect. The names are part of the statements' text: nothing is set in a
-- session, which a transaction pooler would lose.
DO $$
BEGIN
    IF 'tidemill.' <> 'installation.' THEN -- a further application's schema
        DROP TABLE tidemill.session, tidemill.token, tidemill.audit, tidemill.host_sample, tidemill.host;
        RETURN;
    END IF;

    CREATE TABLE tidemill.application (
        name       text COLLATE "C" PRIMARY KEY,
        schema     text COLLATE "C" NOT NULL UNIQUE,
        created_at timestamptz NOT NULL DEFAULT now()
    );

    -- The application that an entry is about; unset for what concerns the installation, and for entries from before.
    ALTER TABLE tidemill.audit ADD COLUMN application text COLLATE "C";

    -- A change of what all applications share is noted for the live pages of each of them.
    CREATE FUNCTION tidemill.note_shared() RETURNS trigger LANGUAGE plpgsql AS $note$
    DECLARE
        place text;
    BEGIN
        IF NOT EXISTS (SELECT FROM changed) THEN
            RETURN NULL;
        END IF;
        FOR place IN
            SELECT schema FROM (SELECT schema FROM tidemill.application UNION SELECT TG_TABLE_SCHEMA) AS places
            WHERE to_regprocedure(format('%I.note_change(text, text[])', schema)) IS NOT NULL
        LOOP
            EXECUTE format('SELECT %1$I.note_change($1, ''{}'') WHERE %1$I.is_followed()', place) USING TG_ARGV[0];
        END LOOP;
        RETURN NULL;
    END $note$;
    DROP TRIGGER change_insert ON tidemill.audit;
    DROP TRIGGER change_insert ON tidemill.host;
    DROP TRIGGER change_update ON tidemill.host;
    CREATE TRIGGER change_insert AFTER INSERT ON tidemill.audit REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_shared('audit');
    CREATE TRIGGER change_insert AFTER INSERT ON tidemill.host REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_shared('hosts');
    CREATE TRIGGER change_update AFTER UPDATE ON tidemill.host REFERENCING NEW TABLE AS changed
        FOR EACH STATEMENT EXECUTE FUNCTION tidemill.note_shared('hosts');
END $$;
