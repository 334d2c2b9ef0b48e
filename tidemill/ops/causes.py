"""What something followed from, step by step: from an alert over its event, message, job and run to the request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, ForbiddenError, NotFoundError
from tidemill.engine.jobs.origin import cause_of
from tidemill.ops.jobs.batches import BatchNumber, get_batch
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import doc
from tidemill.ops.pipelines.states import GetState, get_state
from tidemill.sources import LogSource
from tidemill.store.monitors.monitors import read_event_origins
from tidemill.store.origins import read_job_origin, read_message_origin, read_run_origin
from tidemill.store.states.origins import read_origins

MOST_CAUSES = 50

_MESSAGE = re.compile(r"([^/:]+)/([^/]+?):([0-9]+:[0-9]+)")
_STATE = re.compile(r"([^/]+)/([^/]+)/(.*)", re.DOTALL)


class Related(msgspec.Struct, frozen=True):
    """Something that is explained by its own id, and what it is."""

    id: Annotated[str, doc("The id that explains it; empty for what has none: a request, a program, a person.")]
    what: Annotated[str, doc("What it is.")]
    state: str


class _Cause(msgspec.Struct, frozen=True):
    """One step back: the work by its id, or in words what has none."""

    id: str | None = None
    words: str = ""


async def causes_of_job(at: Local, origin: Mapping[str, Any] | None, run: int | None) -> list[Related]:
    """What a job came from."""
    return await _follow(at, _cause_in(origin, run))


async def causes_of_run(at: Local, id: int) -> list[Related]:
    """What a run came from."""
    row = await read_run_origin(at.database, id)
    return [] if row is None else await _follow(at, _cause_of_run(row))


async def causes_of_message(at: Local, stream: str, source: str, place: str) -> list[Related]:
    """What published a message."""
    return await _follow(at, await _cause_of_message(at, stream, source, place))


async def causes_of_state(at: Local, pipeline: str, made_from: list[str]) -> list[Related]:
    """What wrote the files that a state is made from: the newest that is known."""
    found = await _cause_of_state(at, pipeline, made_from)
    return [] if found is None else [found[0], *await _follow(at, found[1])]


async def causes_of_alert(at: Local, monitor: str, record: Mapping[str, Any]) -> list[Related]:
    """The last event before an alert whose origin is known, and what published it."""
    events = [(each["id"], each["at"]) for each in record.get("events", ())]
    known = await read_event_origins(at.database, monitor, events) if events else []
    found = next((each for each in known if each[1] is not None), known[0] if known else None)
    if found is None:
        return []
    return [Related("", f"event {found[0]} of monitor {monitor}", ""), *await _follow(at, _step(found[1], None))]


async def _follow(at: Local, cause: _Cause | None) -> list[Related]:
    """The steps back from here, up to what has no id or is no longer stored."""
    found: list[Related] = []
    seen: set[str] = set()
    while cause is not None and len(found) < MOST_CAUSES:
        if cause.id is None:
            return [*found, Related("", cause.words, "")] if cause.words else found
        if cause.id in seen:
            return found
        seen.add(cause.id)
        try:
            steps, cause = await _read(at, cause.id)
        except (ConfigError, NotFoundError):
            steps, cause = [Related(cause.id, "no longer stored, or not declared here", "")], None
        except ForbiddenError as error:
            steps, cause = [Related(cause.id, str(error), "")], None
        found += steps
    return found


async def _read(at: Local, id: str) -> tuple[list[Related], _Cause | None]:
    """One piece of work, and the step back from it."""
    gone = [Related(id, "no longer stored", "")], None
    if id.isdecimal():
        row = await read_job_origin(at.database, int(id))
        if row is None:
            return gone
        return [Related(id, f"job {row['task']}", row["state"])], _cause_in(_decoded(row["origin"]), row["run_id"])
    if id[0] == "r" and id[1:].isdecimal():
        row = await read_run_origin(at.database, int(id[1:]))
        return gone if row is None else ([Related(id, f"run {row['workflow']}", row["state"])], _cause_of_run(row))
    if id[0] == "b" and id[1:].isdecimal():
        batch = await at.do(get_batch, BatchNumber(id=int(id[1:])))
        return [Related(id, f"batch {batch.name or ''}".strip(), batch.state)], _cause_in(batch.origin, None)
    if match := _MESSAGE.fullmatch(id):
        return [Related(id, "message", "")], await _cause_of_message(at, *match.groups())
    if match := _STATE.fullmatch(id):
        pipeline, stage, entity = match.groups()
        details = await at.do(get_state, GetState(name=pipeline, stage=stage, entity=entity, follow=True))
        found = await _cause_of_state(at, pipeline, details.made_from)
        here = Related(id, "state", details.state)
        return ([here], None) if found is None else ([here, found[0]], found[1])
    return gone


def _cause_in(origin: Mapping[str, Any] | None, run: int | None) -> _Cause | None:
    """The step back from a job or batch."""
    if origin is not None:
        for field, form in (("retry_of", "{}"), ("parent", "{}"), ("batch", "b{}"), ("run", "r{}"), ("repeats", "r{}")):
            if origin.get(field) is not None:
                return _Cause(form.format(origin[field]))
    if run is not None:
        return _Cause(f"r{run}")
    if origin is None:
        return None
    if origin.get("schedule"):
        return _Cause(None, f"schedule {origin['schedule']}")
    return _step(origin["by"], origin.get("request"))


def _cause_of_run(row: Any) -> _Cause | None:
    """The step back from a run: its parent, the run that it is a fork of, or its origin."""
    parent = row["parent"] or row["forked_from"]
    return _Cause(f"r{parent}") if parent is not None else _cause_in(_decoded(row["origin"]), None)


async def _cause_of_message(at: Local, stream: str, source: str, place: str) -> _Cause | None:
    known = None if at.declared is None else at.declared.streams.declared.get(stream)
    declared = None if known is None else next((each for each in known.sources if each.name == source), None)
    topic = declared.topic if isinstance(declared, LogSource) else None
    return _step(await read_message_origin(at.database, stream, source, place, topic), None)


async def _cause_of_state(at: Local, pipeline: str, made_from: list[str]) -> tuple[Related, _Cause | None] | None:
    """The newest file among these whose writer is known, and the step back from it."""
    rows = [row for row in await read_origins(at.database, pipeline, made_from) if row["origin"] is not None]
    if not rows:
        return None
    newest = max(rows, key=lambda row: row["at"])
    return Related("", f"file {newest['path']} of pipeline {pipeline}", ""), _step(newest["origin"], None)


def _step(by: str | None, request: str | None) -> _Cause | None:
    """The step back to an origin in words."""
    if by is None:
        return None
    if (id := cause_of(by)) is not None:
        return _Cause(id)
    return _Cause(None, by if request is None else f"request {request} by {by}")


def _decoded(origin: Any) -> Mapping[str, Any] | None:
    return None if origin is None else decode(origin)
