DROP INDEX tidemill.run_own_key, tidemill.run_dags, tidemill.run_state, tidemill.run_workflow,
    tidemill.job_history_tags, tidemill.job_history_key, tidemill.job_history_run, tidemill.job_history_bad_task,
    tidemill.job_history_bad_queue, tidemill.job_history_bad, tidemill.job_history_task, tidemill.job_history_queue;
CREATE INDEX job_history_bad ON tidemill.job_history (state, finished_at) WHERE state <> 'succeeded';
DROP TABLE tidemill.answer, tidemill.session, tidemill.token;
DROP TRIGGER change_insert ON tidemill.job;
DROP TRIGGER change_update ON tidemill.job;
DROP TRIGGER change_delete ON tidemill.job;
DROP TRIGGER change_insert ON tidemill.run;
DROP TRIGGER change_update ON tidemill.run;
DROP TRIGGER change_insert ON tidemill.published;
DROP TRIGGER change_kind ON tidemill.run_input;
DROP TRIGGER change_kind ON tidemill.schedule;
DROP TRIGGER change_kind ON tidemill.worker;
DROP TRIGGER change_kind ON tidemill.worker_control;
DROP TRIGGER change_kind ON tidemill.queue;
DROP TRIGGER change_kind ON tidemill.host;
DROP TRIGGER change_kind ON tidemill.audit;
DROP FUNCTION tidemill.note_shown, tidemill.note_runs, tidemill.note_queues, tidemill.note_kind,
    tidemill.follow_changes, tidemill.is_followed, tidemill.note_change;
DROP SEQUENCE tidemill.change_rung, tidemill.change_until;
DROP TABLE tidemill.change_log, tidemill.change;
