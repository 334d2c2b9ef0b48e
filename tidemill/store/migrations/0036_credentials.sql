-- Credentials of workflow files: named secrets, encrypted with a key that the database does not have.
CREATE TABLE tidemill.credential (
    name text PRIMARY KEY,
    fields text[] NOT NULL,
    key_id text NOT NULL,
    sealed bytea NOT NULL,
    changed_at timestamptz NOT NULL DEFAULT now(),
    changed_by text NOT NULL
);
