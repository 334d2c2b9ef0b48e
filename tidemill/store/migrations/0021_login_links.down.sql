DO $$
BEGIN
    IF 'tidemill.' = 'installation.' THEN
        DELETE FROM tidemill.token WHERE one_time;
        ALTER TABLE tidemill.token DROP COLUMN one_time;
    END IF;
END $$;
