"""Access to the states of a pipeline by pattern and entity, for programs that read and write them.

    async with app.database() as database:
        store = StateStore(blog, database)
        await store.write("daily/{date}/{name}.txt", {"date": "2026-01-15", "name": "host"}, "10:02 INFO ...")
        await store.exists("blog/{date}.md", {"date": "2026-01-15"})
        async for piece in store.stream("blog/{date}.md", {"date": "2026-01-15"}): ...
        await store.list_entities("blog/{date}.md")       [{"date": "2026-01-15"}, ...]
        await store.manifest("blog")                      {"2026-01-15.md": ManifestEntry(code_hash=...), ...}

It works for every state store: files, an object store or the database. Writes are atomic, and consumers are notified at
once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import lru_cache

from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.definition.pipeline import Pipeline
from tidemill.pipelines.stores.base import ManifestEntry, StateDraft, StateStoreError
from tidemill.pipelines.view.pipeline_view import open_states
from tidemill.store.database import Database
from tidemill.store.states.states import StatesChanged, notify_states


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
        path = _pattern(pattern).format(entity)
        for stage in self._pipeline.stages.values():
            if stage.output.values(path) is not None:
                raise ConfigError(f"{path} is made by stage {stage.name}: write what it takes in")
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


@lru_cache(maxsize=256)
def _pattern(text: str) -> Pattern:
    return Pattern(text)
