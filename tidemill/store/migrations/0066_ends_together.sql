-- needs_at_least: 49
-- Whether a worker reads rows of the inbox with the ends of several jobs: one of the version before does not say so, and while there
-- is one, or a run that it owns, each end has its own row.
ALTER TABLE tidemill.worker ADD COLUMN reads_ends boolean NOT NULL DEFAULT true;
UPDATE tidemill.worker AS w SET reads_ends = false
WHERE ended_at IS NULL OR EXISTS (SELECT FROM tidemill.run AS r WHERE r.owner = w.id);
ALTER TABLE tidemill.worker ALTER COLUMN reads_ends SET DEFAULT false;
CREATE INDEX worker_reads_no_ends ON tidemill.worker (id) WHERE NOT reads_ends;

-- A worker of the version before registers. Statements that store ends together, all of which write to `batch_count`, end first or begin
-- afterwards. What they have stored becomes a row for each end; an owner that has read it already loses its run, and writes nothing.
CREATE FUNCTION tidemill.tell_ends_apart() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    LOCK TABLE tidemill.batch_count IN SHARE ROW EXCLUSIVE MODE;
    UPDATE tidemill.run SET owner = NULL, awake = true
    WHERE owner IS NOT NULL AND id IN (SELECT run_id FROM tidemill.inbox WHERE work = 0);
    WITH several AS (DELETE FROM tidemill.inbox WHERE work = 0 RETURNING run_id, due_at, suspended, data)
    INSERT INTO tidemill.inbox (run_id, work, due_at, suspended, data)
    SELECT s.run_id, (one ->> 'work')::bigint, s.due_at, s.suspended, one
    FROM several AS s CROSS JOIN LATERAL json_array_elements(s.data) AS one;
    PERFORM pg_notify('tidemill_runs', 'wake');
    RETURN NULL;
END $$;
CREATE TRIGGER tell_ends_apart AFTER INSERT ON tidemill.worker FOR EACH ROW
    WHEN (NOT NEW.reads_ends) EXECUTE FUNCTION tidemill.tell_ends_apart();
