DROP INDEX tidemill.run_own_key, tidemill.run_dags, tidemill.run_state, tidemill.run_workflow,
    tidemill.job_history_tags, tidemill.job_history_key, tidemill.job_history_run, tidemill.job_history_bad_task,
    tidemill.job_history_bad_queue, tidemill.job_history_bad, tidemill.job_history_task, tidemill.job_history_queue;
CREATE INDEX job_history_bad ON tidemill.job_history (state, finished_at) WHERE state <> 'succeeded';
DROP TABLE tidemill.answer, tidemill.session, tidemill.token;
DO $$
DECLARE
    one record;
BEGIN
    FOR one IN SELECT tgname, tgrelid::regclass AS tab FROM pg_trigger
               WHERE tgname LIKE 'change\_%' AND NOT tgisinternal
                 AND tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = (
                     SELECT relnamespace FROM pg_class WHERE oid = 'tidemill.change'::regclass))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', one.tgname, one.tab);
    END LOOP;
END $$;
DROP FUNCTION tidemill.note_shown, tidemill.note_runs, tidemill.note_queues, tidemill.note_workers,
    tidemill.note_kind, tidemill.note_limits, tidemill.follow_changes, tidemill.is_followed, tidemill.note_change;
DROP SEQUENCE tidemill.change_rung, tidemill.change_until;
DROP TABLE tidemill.change_log, tidemill.change;
