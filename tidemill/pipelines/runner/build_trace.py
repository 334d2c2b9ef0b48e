"""The trace of a pipeline: a build continues the traces of its inputs, and its outputs carry its own.

Without a tracer provider nothing is read or stored, and builds cost what they cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tidemill.engine.telemetry.tracing import is_tracing
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.store.database import Database
from tidemill.store.states.origins import FileOrigin, note_origins, read_origins


async def read_traces(database: Database, pipeline: str, steps: Sequence[BuildStep]) -> None:
    """Give steps the traces that their inputs were written in."""
    if not steps or not is_tracing():
        return
    paths = {path for step in steps for group in step.paths for path in group}
    rows = await read_origins(database, pipeline, sorted(paths))
    known = {row["path"]: row["trace"] for row in rows if row["trace"] is not None}
    for step in steps:
        inputs = (path for group in step.paths for path in group)
        step.traces = tuple(dict.fromkeys(known[path] for path in inputs if path in known))


async def keep_traces(database: Database, pipeline: str, outputs: Mapping[str, str]) -> None:
    """Store the traces that files are about to be written in, by path: before they are, so that a crash loses none."""
    if outputs:
        async with database.transaction() as connection:
            files = [FileOrigin(path, None, trace) for path, trace in outputs.items()]
            await note_origins(database, connection, pipeline, files)
