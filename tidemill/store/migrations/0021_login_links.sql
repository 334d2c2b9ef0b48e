-- A log-in link carries a token that opens one browser session and cannot be used again.
DO $$
BEGIN
    IF 'tidemill.' = 'installation.' THEN
        ALTER TABLE tidemill.token ADD COLUMN one_time boolean NOT NULL DEFAULT false;
    END IF;
END $$;
