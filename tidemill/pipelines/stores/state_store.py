"""Access to the states of a pipeline by pattern and entity, for programs that read and write them.

    async with app.database() as database:
        store = StateStore(blog, database)
        await store.write("daily/{date}/{name}.txt", {"date": "2026-01-15", "name": "host"}, "10:02 INFO ...")
        await store.exists("blog/{date}.md", {"date": "2026-01-15"})
        async for piece in store.stream("blog/{date}.md", {"date": "2026-01-15"}): ...
        await store.list_entities("blog/{date}.md")       [{"date": "2026-01-15"}, ...]
        await store.manifest("blog")                      {"2026-01-15.md": ManifestEntry(code_hash=...), ...}

It works for every state store: files, an object store or the database. Writes are atomic, and consumers are notified at
once. `app.states("blog")` writes states from async and plain code, and in a transaction of yours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import lru_cache
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.engine.application.connections import Connections, OpenConnection
from tidemill.engine.jobs.origin import origin_text
from tidemill.engine.telemetry.tracing import current_trace
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.stores.base import ManifestEntry, StateDraft, StateStoreError
from tidemill.pipelines.stores.database import MOST_BYTES, TOO_LARGE, DatabaseStates
from tidemill.pipelines.stores.external_states import check_input
from tidemill.pipelines.view.pipeline_view import open_states
from tidemill.store.connection.caller_connection import Statements, run_async, run_sync
from tidemill.store.database import Database
from tidemill.store.states.blobs import write_blob_statements
from tidemill.store.states.origins import FileOrigin, note_origin_statements, note_origins
from tidemill.store.states.states import StatesChanged, notify_statements, notify_states


class StateStore:
    """The states of one pipeline."""

    def __init__(self, pipeline: Pipeline, database: Database) -> None:
        self._pipeline = pipeline
        self._database = database
        self._states = open_states(pipeline, database)

    async def exists(self, pattern: str, entity: Mapping[str, str]) -> bool:
        """Whether a state exists."""
        path = _pattern(pattern).format(entity)
        return (await self._states.read_signatures([path]))[path] is not None

    async def read(self, pattern: str, entity: Mapping[str, str]) -> bytes:
        """The content of a state; a `FileNotFoundError` if it does not exist."""
        return await self._states.read(_pattern(pattern).format(entity))

    def stream(self, pattern: str, entity: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The same in chunks, for large contents."""
        return self._states.stream(_pattern(pattern).format(entity))

    async def write(self, pattern: str, entity: Mapping[str, str], content: str | bytes | Iterable[bytes]) -> str:
        """Write a state that no stage builds; returns its path. Pass large contents in chunks."""
        path = _path_to_write(self._pipeline, pattern, entity)
        return await self.write_from(_origin_here(path), content)

    async def write_from(self, origin: FileOrigin, content: str | bytes | Iterable[bytes]) -> str:
        """Write a file whose origin is known; returns its path."""
        path = origin.path
        _check_content(path, content)
        before = (await self._states.read_signatures([path]))[path]
        data = content.encode() if isinstance(content, str) else content
        (ready,) = await self._states.prepare([StateDraft(path, data, {}, before=before)])
        if ready.error is not None:
            raise StateStoreError(f"{path} could not be written: {ready.error}")
        if path not in await self._states.publish([ready]):
            await self._states.discard([ready])
            if ready.error is not None:
                raise StateStoreError(ready.error)
            raise StateStoreError(f"{path} was changed by another writer at the same time: write it again")
        async with self._database.transaction() as connection:
            await note_origins(self._database, connection, self._pipeline.name, [origin])
            await notify_states(self._database, connection, StatesChanged(self._pipeline.name, paths=[path]))
        return path

    async def list_entities(self, pattern: str) -> list[dict[str, str]]:
        """The variables of all entities with a state."""
        wanted = _pattern(pattern)
        found = (await self._states.scan([wanted])).matched[wanted]
        values = (wanted.match(path) for path in sorted(found))
        return [dict(each) for each in dict.fromkeys(tuple(value.items()) for value in values if value is not None)]

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        """What is known about the states in a directory: code, content, and who built them when."""
        return await self._states.manifest(directory.strip("/"))


class PipelineStates:
    """`app.states(pipeline)`: writes states of a pipeline from outside, also in a transaction of the caller."""

    def __init__(self, pipeline: Pipeline, connections: Connections) -> None:
        self._pipeline = pipeline
        self._connections = connections

    async def write(
        self, pattern: str, entity: Mapping[str, str], content: str | bytes | Iterable[bytes], *, conn: Any = None
    ) -> str:
        """Write a state that no stage builds; returns its path.

        `conn` is your own open connection: the state is written if and only if your transaction commits. That needs a
        pipeline with `store=DatabaseStates(...)`.
        """
        if conn is None:
            opened = await self._connections.open()
            return await StateStore(self._pipeline, opened.database).write(pattern, entity, content)
        return await run_async(self._connections.unopened, conn, self._statements(pattern, entity, content))

    def write_sync(
        self, pattern: str, entity: Mapping[str, str], content: str | bytes | Iterable[bytes], *, conn: Any = None
    ) -> str:
        """`write` for plain code; `conn` is then a plain connection."""
        if conn is not None:
            return run_sync(self._connections.unopened, conn, self._statements(pattern, entity, content))

        origin = _origin_here(_path_to_write(self._pipeline, pattern, entity))

        async def write(opened: OpenConnection) -> str:
            return await StateStore(self._pipeline, opened.database).write_from(origin, content)

        return self._connections.call(write)

    def _statements(
        self, pattern: str, entity: Mapping[str, str], content: str | bytes | Iterable[bytes]
    ) -> Statements[str]:
        place, name = self._pipeline.store, self._pipeline.name
        if not isinstance(place, DatabaseStates):
            raise ConfigError(
                f"pipeline {name} keeps its states outside of the database, where no transaction reaches: write them "
                "without conn=, or declare the pipeline with store=DatabaseStates(...)"
            )
        path = _path_to_write(self._pipeline, pattern, entity)
        _check_content(path, content)
        data = content.encode() if isinstance(content, str) else content
        data = data if isinstance(data, bytes) else b"".join(data)
        if len(data) > MOST_BYTES:
            raise StateStoreError(f"{path} is {TOO_LARGE}")
        yield from write_blob_statements(self._connections.unopened, place.name, [(path, data)])
        yield from note_origin_statements(name, _origin_here(path))
        yield from notify_statements(StatesChanged(name, paths=[path]))
        return path


def _origin_here(path: str) -> FileOrigin:
    return FileOrigin(path, origin_text(), current_trace())


def _path_to_write(pipeline: Pipeline, pattern: str, entity: Mapping[str, str]) -> str:
    path = _pattern(pattern).format(entity)
    check_input(pipeline, path)
    return path


def _check_content(path: str, content: object) -> None:
    if isinstance(content, Mapping) or not isinstance(content, str | bytes | Iterable):
        raise ConfigError(f"{path}: the content of a state is text, bytes or chunks of bytes, and not {content!r:.100}")


@lru_cache(maxsize=256)
def _pattern(text: str) -> Pattern:
    return Pattern(text)
