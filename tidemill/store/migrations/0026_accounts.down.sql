DO $$
BEGIN
    IF 'tidemill.' = 'installation.' THEN
        DELETE FROM tidemill.session WHERE token_id IS NULL;
        DROP INDEX tidemill.session_subject;
        ALTER TABLE tidemill.session
            DROP CONSTRAINT session_account_check,
            DROP COLUMN id, DROP COLUMN name, DROP COLUMN subject, DROP COLUMN provider, DROP COLUMN grants,
            DROP COLUMN address, DROP COLUMN agent, DROP COLUMN used_at,
            ALTER COLUMN token_id SET NOT NULL;

        -- A token for one application would be for all without this column.
        UPDATE tidemill.token SET revoked_at = now(), revoked_by = 'migration'
        WHERE application IS NOT NULL AND revoked_at IS NULL;
        ALTER TABLE tidemill.token DROP CONSTRAINT token_role_check, DROP COLUMN application;
        ALTER TABLE tidemill.token RENAME COLUMN role TO scope;
        UPDATE tidemill.token SET scope = CASE scope WHEN 'viewer' THEN 'read' WHEN 'admin' THEN 'admin' ELSE 'operate' END;
        ALTER TABLE tidemill.token ADD CONSTRAINT token_scope_check CHECK (scope IN ('read', 'operate', 'admin'));
    END IF;
END $$;
