"""States in the database itself: for small states, and where there is no file system to share.

Pipeline("notes", store=DatabaseStates("notes"))
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import blake2b

from tidemill.core.errors import StoreError
from tidemill.pipelines.pattern import Pattern
from tidemill.pipelines.states import Draft, ManifestEntry, Prepared, Seen, Survey, hash_content
from tidemill.store.blobs import archive_blobs, drop_blobs, list_blobs, look_at_blobs, read_blob, write_blobs
from tidemill.store.database import Database


class DatabaseStates:
    """States in a table, under the name of their store. Two pipelines with the same name share them."""

    def __init__(self, name: str, database: Database | None = None) -> None:
        self.name = name
        self._database = database

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseStates) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def open(self, database: Database) -> DatabaseStates:
        """The same states, through this database."""
        return DatabaseStates(self.name, database)

    @property
    def database(self) -> Database:
        if self._database is None:
            raise StoreError(f"the states {self.name!r} are not open: use `states.open(database)`")
        return self._database

    async def survey(self, patterns: Sequence[Pattern]) -> Survey:
        survey = Survey({}, {pattern: {} for pattern in patterns}, [], set())
        for path, version in await list_blobs(self.database, self.name):
            hit = [pattern for pattern in survey.matched if pattern.values(path) is not None]
            if hit:
                survey.signatures[path] = version
                for pattern in hit:
                    survey.matched[pattern][path] = None
        return survey

    async def look(self, paths: Iterable[str]) -> dict[str, int | None]:
        wanted = list(paths)
        found = await look_at_blobs(self.database, self.name, wanted)
        return {path: found.get(path) for path in wanted}

    async def contents(self, paths: Sequence[str]) -> dict[str, Seen | None]:
        found: dict[str, Seen | None] = {}
        for path in paths:
            row = await read_blob(self.database, self.name, path)
            found[path] = None if row is None else Seen(hash_content(row[0]), len(row[0]), row[1])
        return found

    async def read(self, path: str) -> bytes:
        row = await read_blob(self.database, self.name, path)
        if row is None:
            raise FileNotFoundError(path)
        return row[0]

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        yield await self.read(path)

    async def prepare(self, drafts: Sequence[Draft]) -> list[Prepared]:
        prepared = []
        for draft in drafts:
            data = draft.content if isinstance(draft.content, bytes) else b"".join(draft.content)
            digest = blake2b(data, digest_size=16).hexdigest()
            prepared.append(Prepared(draft.path, digest, len(data), draft.needs, draft.entity, draft.before, data))
        return prepared

    async def publish(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        needed = {path for each in prepared for path in each.needs}
        there = await self.look([*needed, *(each.path for each in prepared if each.held is None)])
        good = [each for each in prepared if all(there.get(path) == want for path, want in each.needs.items())]
        done = {each.path: each.before for each in good if each.held is None and there[each.path] == each.before}
        written = await write_blobs(
            self.database, self.name, [(each.path, each.held) for each in good if each.held is not None]
        )
        return {**{path: version for path, version in done.items() if version is not None}, **written}

    async def discard(self, prepared: Sequence[Prepared]) -> None:
        """Nothing was stored yet."""

    async def remove(self, paths: Sequence[str]) -> None:
        await drop_blobs(self.database, self.name, list(paths))

    async def archive(self, paths: Sequence[str]) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        await archive_blobs(self.database, self.name, list(paths), f".archive/{stamp}/")

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        """What a manifest would say is in the table beside."""

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        return {}
