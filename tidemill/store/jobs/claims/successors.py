"""Handing over: the statement that finishes a dag's job stores the job that follows it, and claims it if it is next.

The run's owner has said what follows for certain (`JobChain`), and gets a row in the run's inbox that names the piece
of work. This happens only while that owner has the run, and only if the job has not been cancelled: a request to cancel
changes the row that this statement deletes, so one of the two comes first.
"""

from __future__ import annotations

#: Whether the success of a job stores the one that follows it.
HANDS_OVER = "successor::text <> '{}' AS hands_over"

#: Jobs that have succeeded, some of which hand over.
SUCCEEDED = """
    SELECT owned.*, d.result, (
        owned.successor::text <> '{{}}' AND owned.cancel_reason IS NULL
        AND coalesce(octet_length(d.result::text), 0) <= (owned.successor ->> 'limit')::int
        AND (owned.successor ->> 'by')::bigint = (SELECT r.owner FROM tidemill.run AS r WHERE r.id = owned.run_id)
        ) IS TRUE AS is_followed
    FROM unnest({0}::bigint[], {1}::int[], {2}::json[]) AS d(id, attempt, result)
"""

#: What the inbox of the run receives: the piece of work whose job is stored already.
FOLLOWED_BY = "CASE WHEN is_followed THEN (successor ->> 'work')::bigint END"

# The queue has nothing else that is ready, so that no job is overtaken; the worker has room, and knows the task.
_IS_NEXT = """
    row_number() OVER (PARTITION BY successor ->> 'queue')
        + (SELECT count(*) FROM claimed AS c WHERE c.queue = owned.successor ->> 'queue')
    <= (SELECT room FROM unnest($1::text[], $2::int[]) AS w(queue, room) WHERE w.queue = successor ->> 'queue' LIMIT 1)
    AND successor ->> 'task' <> ALL ($5::text[])
    AND EXISTS (SELECT FROM tidemill.worker WHERE id = {worker} AND ended_at IS NULL)
"""


def handed_sql(worker: str, gone: str) -> str:
    """The part `handed` of a statement that finishes the jobs in `owned` and claims others as `claimed`."""
    return f"""
handed AS (
    INSERT INTO tidemill.job (run_id, work, queue, task, args, priority, options, origin, tags, successor,
                              state, worker_id, attempt, started_at)
    SELECT run_id, (s ->> 'work')::bigint, s ->> 'queue', s ->> 'task', s -> 'args', (s ->> 'priority')::smallint,
           s -> 'options', s -> 'origin',
           CASE WHEN s -> 'tags' IS NOT NULL THEN ARRAY(SELECT json_array_elements_text(s -> 'tags')) END,
           coalesce(s -> 'successor', '{{}}'),
           CASE WHEN is_next THEN 'running' ELSE 'ready' END, CASE WHEN is_next THEN {worker} END, is_next::int,
           CASE WHEN is_next THEN now() END
    FROM (SELECT run_id, successor AS s, ({_IS_NEXT.format(worker=worker)}) IS TRUE AS is_next
          FROM owned WHERE is_followed AND {gone}) AS following
    RETURNING id, attempt, queue, task, args, options, failures, losses, cancel_reason, priority, due_at, origin,
              {HANDS_OVER}, state)"""


#: The handed jobs that are claimed, like the rows of a claim.
CLAIMED = """
SELECT id, attempt, queue, task, args, options, failures, losses, false, false, cancel_reason, priority, due_at, origin,
       hands_over, true FROM handed WHERE state = 'running'
"""

#: Notifies workers of handed jobs that are not claimed yet.
NOTIFY_HANDED = """(SELECT count(pg_notify('tidemill_jobs', queue)) FROM (
    SELECT DISTINCT queue FROM handed WHERE state = 'ready') AS others)"""
