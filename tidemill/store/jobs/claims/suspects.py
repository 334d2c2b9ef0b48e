"""Suspects: jobs that may have ended their process, which run apart from others."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.store.database import Database

#: How often the least suspected job of these queues is suspected, and the seconds until it is due. One that waits for
#: its concurrency key is checked again soon.
FIND_SUSPECTS = """
SELECT suspicions, CASE state WHEN 'ready' THEN extract(epoch FROM due_at - now())::float8 ELSE 1 END AS seconds
FROM tidemill.job
WHERE suspicions > 0 AND state IN ('ready', 'throttled') AND queue = ANY ($1) AND task <> ALL ($2::text[])
ORDER BY (state = 'ready' AND due_at <= now()) DESC, suspicions, due_at LIMIT 1
"""

#: Claims suspects that are suspected this often; nothing else may run beside them in their process.
CLAIM_SUSPECTS = """
UPDATE tidemill.job SET state = 'running', worker_id = $4, attempt = attempt + 1, started_at = now(),
                        note = NULL, progress = NULL
WHERE id = ANY (ARRAY(
    SELECT id FROM tidemill.job
    WHERE suspicions > 0 AND suspicions = $3 AND state = 'ready' AND due_at <= now() AND queue = ANY ($1)
      AND task <> ALL ($2::text[])
    ORDER BY priority DESC, due_at, id LIMIT $5 FOR UPDATE SKIP LOCKED))
  AND EXISTS (SELECT FROM tidemill.worker WHERE id = $4 AND ended_at IS NULL)
RETURNING id, attempt, queue, task, args, options, failures, losses,
          concurrency_key IS NOT NULL AS keyed, deadline <= now() AS expired, cancel_reason, priority, due_at,
          origin
"""


async def next_suspect(database: Database, queues: Sequence[str], unknown: Sequence[str]) -> float | None:
    """Seconds until the next suspect of these queues is due; None if there is none."""
    row = await database.fetchrow(FIND_SUSPECTS, list(queues), list(unknown), patience=None)
    return None if row is None else row["seconds"]
