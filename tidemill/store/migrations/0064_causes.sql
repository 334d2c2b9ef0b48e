-- needs_at_least: 49
-- The indexes of what followed from a job searched the whole origin of every job three times in its life: most begin with who
-- enqueued them, and need no search. Those that replace them are in the file of online indexes.
DROP INDEX IF EXISTS tidemill.job_follows, tidemill.job_history_follows, tidemill.run_follows;
