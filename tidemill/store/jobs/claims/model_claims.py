"""Claims of workers that keep models loaded: which jobs wait for which model, and claims for one model at a time.

Such a worker first polls (`look_for_models`), decides which model to serve, and then claims only jobs of that model.
Each statement reads a few index entries, however many jobs wait: `job_model` has one range per queue, model and
priority. Jobs without a model have no index of their own, because every other worker would pay for it. They are found
among the first `WINDOW` jobs of their priority, and later ones move into that window.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from tidemill.core.jobs.job import ClaimedJob
from tidemill.store.jobs.claims.claims import Claims, claimed_job

WINDOW = 200

# Ready and due jobs of one queue and priority.
_READY = """queue = {0} AND priority = {1} AND state = 'ready' AND due_at <= now() AND fair_key IS NULL
    AND suspicions = 0"""

# Jobs that need no model, or one that the worker does not know: it reports that and puts them back.
_NONE_OF = "(required_model IS NULL OR required_model <> ALL ({0}::text[]))"

#: The oldest due job of each queue, priority and model, and how long it has waited; the last row is the time.
LOOK_FOR_MODELS = f"""
SELECT wanted.queue, p.priority, m.model, head.due_at, extract(epoch FROM now() - head.due_at)::float8 AS waited
FROM unnest($1::text[]) AS wanted(queue) CROSS JOIN generate_series(9, 0, -1) AS p(priority)
CROSS JOIN unnest($2::text[]) AS m(model) CROSS JOIN LATERAL (
    SELECT due_at FROM tidemill.job
    WHERE {_READY.format("wanted.queue", "p.priority")} AND required_model = m.model AND task <> ALL ($3::text[])
    ORDER BY due_at, id LIMIT 1) AS head
UNION ALL
SELECT wanted.queue, p.priority, NULL, head.due_at, extract(epoch FROM now() - head.due_at)::float8
FROM unnest($1::text[]) AS wanted(queue) CROSS JOIN generate_series(9, 0, -1) AS p(priority) CROSS JOIN LATERAL (
    SELECT due_at FROM (
        SELECT due_at, required_model, task FROM tidemill.job
        WHERE {_READY.format("wanted.queue", "p.priority")} ORDER BY due_at, id LIMIT {WINDOW}) AS first
    WHERE {_NONE_OF.format("$2")} AND task <> ALL ($3::text[]) LIMIT 1) AS head
UNION ALL
SELECT NULL, NULL, NULL, now(), NULL
"""

# Sets the selected jobs to running, unless the worker has ended.
_TAKE = """
UPDATE tidemill.job SET state = 'running', worker_id = $4, attempt = attempt + 1, started_at = now(),
                        note = NULL, progress = NULL
WHERE ctid = ANY (ARRAY({0}))
  AND EXISTS (SELECT FROM tidemill.worker WHERE id = $4 AND ended_at IS NULL)
RETURNING id, attempt, queue, task, args, options, failures, losses,
          concurrency_key IS NOT NULL AS keyed, deadline <= now() AS expired, cancel_reason, priority, due_at, origin
"""

#: Claims up to `$3` due jobs of one queue and priority that need one model.
CLAIM_OF_MODEL = _TAKE.format(f"""
    SELECT ctid FROM tidemill.job
    WHERE {_READY.format("$1", "$2")} AND required_model = $6 AND task <> ALL ($5::text[])
    ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED""")

#: The same for jobs that need no model, among the first of their priority.
CLAIM_WITHOUT_MODEL = _TAKE.format(f"""
    SELECT ctid FROM tidemill.job
    WHERE state = 'ready' AND id = ANY (ARRAY(
        SELECT id FROM (
            SELECT id, required_model, task FROM tidemill.job
            WHERE {_READY.format("$1", "$2")} ORDER BY due_at, id LIMIT {WINDOW}) AS first
        WHERE {_NONE_OF.format("$6")} AND task <> ALL ($5::text[])))
    ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED""")

#: Seconds until the first job of these queues is due that was not due at `$2`.
NEXT_DUE_AFTER = """
SELECT extract(epoch FROM min(level.due_at) - now())::float8
FROM unnest($1::text[]) AS wanted(queue) CROSS JOIN generate_series(0, 9) AS p(priority) CROSS JOIN LATERAL (
    SELECT due_at FROM tidemill.job
    WHERE queue = wanted.queue AND priority = p.priority AND state = 'ready' AND due_at > $2 AND fair_key IS NULL
      AND suspicions = 0 AND task <> ALL ($3::text[])
    ORDER BY due_at LIMIT 1) AS level
"""


class Head(NamedTuple):
    """The first job of a queue, priority and model (None: jobs that need no model), and how long it has waited."""

    queue: str
    priority: int
    model: str | None
    waited: float


class ModelClaims:
    """The claims of a worker with models, on the connection of its other claims."""

    def __init__(self, claims: Claims, models: Sequence[str]) -> None:
        self._claims = claims
        self._models = list(models)
        self._looked_at: datetime | None = None

    async def look_for_models(self, queues: Sequence[str], unknown: Sequence[str]) -> list[Head]:
        """The first due jobs of these queues, by priority and model."""
        rows = await self._claims.fetch(LOOK_FOR_MODELS, list(queues), self._models, list(unknown))
        self._looked_at = rows.pop()[3]
        return [Head(row[0], row[1], row[2], row[4]) for row in rows]

    async def claim(self, head: Head, room: int, unknown: Sequence[str]) -> list[ClaimedJob]:
        """Claim up to `room` jobs like this one, oldest first."""
        given = (head.queue, head.priority, room, self._claims.worker_id, list(unknown))
        if head.model is None:
            rows = await self._claims.fetch(CLAIM_WITHOUT_MODEL, *given, self._models)
        else:
            rows = await self._claims.fetch(CLAIM_OF_MODEL, *given, head.model)
        return [claimed_job(row) for row in sorted(rows, key=lambda row: (row[12], row[0]))]

    async def next_due(self, queues: Sequence[str], unknown: Sequence[str]) -> float | None:
        """Seconds until the next job of these queues becomes due; jobs that are due already do not count."""
        if self._looked_at is None:
            return 0.0
        rows = await self._claims.fetch(NEXT_DUE_AFTER, list(queues), self._looked_at, list(unknown))
        return rows[0][0]
