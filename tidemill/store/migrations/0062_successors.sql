-- needs_at_least: 49
-- The jobs that follow a dag's job for certain: the statement that finishes it stores the next of them. '{}' is none; NULL is
-- a job that was stored by the version before, or that belongs to no run.
ALTER TABLE tidemill.job ADD COLUMN successor json;

-- An owner of the version before stores each job of its runs itself: not those that are there already.
CREATE FUNCTION tidemill.skip_handed_over() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM tidemill.run WHERE id = NEW.run_id AND kind = ':dag') AND (
        EXISTS (SELECT FROM tidemill.job WHERE run_id = NEW.run_id AND work = NEW.work)
        OR EXISTS (SELECT FROM tidemill.job_history WHERE run_id = NEW.run_id AND work = NEW.work))
    THEN
        RETURN NULL;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER skip_handed_over BEFORE INSERT ON tidemill.job FOR EACH ROW
    WHEN (NEW.run_id IS NOT NULL AND NEW.successor IS NULL) EXECUTE FUNCTION tidemill.skip_handed_over();
