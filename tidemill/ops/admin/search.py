"""Search: one query for ids, names, keys and tags."""

from __future__ import annotations

from typing import Annotated

from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store import search as store
from tidemill.store.search import Hit
from tidemill.store.transaction import Reader


class Search(Arguments, frozen=True, kw_only=True):
    """What to look for."""

    q: Annotated[str, doc("An id (12, r12), a name, a key, a tag.", min_length=1, max_length=200)]
    limit: Annotated[int, doc("How many of each kind.", ge=1, le=50)] = 8


@operation("GET /search", role="viewer")
async def search(at: Reader, args: Search, declared: Declarations) -> ListOf[Hit]:
    """Find jobs and runs by id, key or tag; queues, tasks, workflows and all else that has a name by its name."""
    found = await store.search(at.database, args.q, limit=args.limit)
    known = {(hit.kind, hit.id) for hit in found}
    named = [
        Hit(kind, name, name, why="name")
        for name, kind in declared_names(declared).items()
        if args.q.strip().lower() in name.lower() and (kind, name) not in known
    ]
    return ListOf(found + named[: args.limit])


def declared_names(declared: Declarations) -> dict[str, str]:
    """Everything that the application declares by a name, and its kind."""
    kinds = {
        "task": declared.tasks,
        "flow": declared.runs.flows,
        "dag": declared.runs.dags,
        "stream": declared.streams.declared,
        "monitor": declared.monitors,
        "pipeline": declared.pipelines.known,
    }
    return {name: kind for kind, names in kinds.items() for name in names}
