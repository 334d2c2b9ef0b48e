-- Accounts for a team: tokens have a role, for one application or for all; sessions are listed, and a session may belong
-- to a user of an identity provider in place of a token.
DO $$
BEGIN
    IF 'tidemill.' = 'installation.' THEN
        ALTER TABLE tidemill.token DROP CONSTRAINT token_scope_check;
        ALTER TABLE tidemill.token RENAME COLUMN scope TO role;
        UPDATE tidemill.token SET role = CASE role WHEN 'read' THEN 'viewer' WHEN 'operate' THEN 'operator' ELSE role END;
        ALTER TABLE tidemill.token
            ADD CONSTRAINT token_role_check CHECK (role IN ('viewer', 'operator', 'editor', 'admin')),
            ADD COLUMN application text COLLATE "C"; -- The only application that it is for; NULL for all.

        ALTER TABLE tidemill.session
            ALTER COLUMN token_id DROP NOT NULL,
            ADD COLUMN id       bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
            ADD COLUMN name     text, -- The next four are of a user of an identity provider.
            ADD COLUMN subject  text COLLATE "C",
            ADD COLUMN provider text COLLATE "C", -- The version of the settings that gave the roles.
            ADD COLUMN grants   jsonb, -- Roles by application; '*' for all.
            ADD COLUMN address  text,
            ADD COLUMN agent    text,
            ADD COLUMN used_at  timestamptz,
            ADD CONSTRAINT session_account_check CHECK ((token_id IS NULL) = (subject IS NOT NULL AND grants IS NOT NULL));
        CREATE INDEX session_subject ON tidemill.session (subject) WHERE subject IS NOT NULL;
    END IF;
END $$;
