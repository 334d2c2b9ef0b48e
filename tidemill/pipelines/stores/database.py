"""States in the database: for small states, and where there is no shared file system.

Pipeline("notes", store=DatabaseStates("notes"))

A content is held in memory as a whole: store large ones in files or an object store.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from tidemill.core.errors import StoreError
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.stores.base import (
    NO_BUILDER,
    Alive,
    ContentError,
    ManifestEntry,
    Prepared,
    Scan,
    SeenFile,
    StateDraft,
    StateStoreError,
    Unreadable,
    hash_content,
    hash_pieces,
    manifest_path,
)
from tidemill.pipelines.stores.manifest import changed_manifest, entries_in
from tidemill.store.database import Database
from tidemill.store.states.blobs import (
    archive_blobs,
    change_blob,
    drop_blobs,
    list_blobs,
    read_blob_versions,
    read_blobs,
    write_blobs,
)

MOST_BYTES = 256 << 20
TOO_LARGE = f"larger than {MOST_BYTES >> 20} MiB: store it in files or an object store, not in the database"
MOST_PATH = 2400  # bytes of a path: more do not fit into an index, with the name of the store and of an archive
LONG_PATH = f"its path has more than {MOST_PATH:,} bytes, which the database cannot hold: use a shorter name"
AT_ONCE = 100  # contents read per query


class DatabaseStates:
    """States in a table, under the name of their store. Two pipelines with the same name share them."""

    def __init__(self, name: str, database: Database | None = None) -> None:
        self.name = name
        self.builder = NO_BUILDER
        self._database = database

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatabaseStates) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return f"the database, as {self.name}"

    def open(self, database: Database) -> DatabaseStates:
        """The same states, through this database."""
        return DatabaseStates(self.name, database)

    @property
    def database(self) -> Database:
        if self._database is None:
            raise StoreError(f"the states {self.name!r} are not open: use `states.open(database)`")
        return self._database

    async def identify(self) -> str:
        return ""  # Each host that reaches the store has the same states.

    async def check_identity(self, id: str) -> None:
        """Do nothing: each host that reaches the store has the same states."""

    async def scan(self, patterns: Sequence[Pattern]) -> Scan:
        scan = Scan({}, {pattern: {} for pattern in patterns}, [], set())
        for path, version in await list_blobs(self.database, self.name):
            hit = [pattern for pattern in scan.matched if pattern.values(path) is not None]
            if hit:
                scan.signatures[path] = version
                for pattern in hit:
                    scan.matched[pattern][path] = None
        return scan

    async def read_signatures(self, paths: Iterable[str]) -> dict[str, int | None]:
        wanted = list(paths)
        found = await read_blob_versions(self.database, self.name, wanted)
        return {path: found.get(path) for path in wanted}

    async def contents(self, paths: Sequence[str]) -> dict[str, SeenFile | Unreadable | None]:
        seen: dict[str, SeenFile | Unreadable | None] = dict.fromkeys(paths)
        for start in range(0, len(paths), AT_ONCE):
            for path, content, version in await read_blobs(self.database, self.name, paths[start : start + AT_ONCE]):
                seen[path] = SeenFile(hash_content(content), len(content), version)
        return seen

    async def read(self, path: str) -> bytes:
        found = await read_blobs(self.database, self.name, [path])
        if not found:
            raise FileNotFoundError(path)
        return found[0][1]

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        yield await self.read(path)

    async def prepare(self, drafts: Sequence[StateDraft]) -> list[Prepared]:
        done: list[Prepared] = []
        for draft in drafts:
            try:
                data = draft.content if isinstance(draft.content, bytes) else b"".join(hash_pieces(draft.content, {}))
            except ContentError as error:
                done.append(draft.failed(error))
                continue
            if len(draft.path.encode()) > MOST_PATH:
                done.append(draft.failed(StateStoreError(LONG_PATH)))
            elif len(data) > MOST_BYTES:
                done.append(draft.failed(StateStoreError(f"{draft.path} is {TOO_LARGE}")))
            else:
                done.append(draft.prepared(hash_content(data), len(data), data))
        return done

    async def publish(self, ready: Sequence[Prepared]) -> dict[str, int]:
        needed = {path for each in ready for path in each.needs}
        there = await self.read_signatures([*needed, *(each.path for each in ready if each.held is None)])
        good = [each for each in ready if all(there.get(path) == want for path, want in each.needs.items())]
        done = {each.path: each.before for each in good if each.held is None and there[each.path] == each.before}
        written = await write_blobs(
            self.database, self.name, [(each.path, each.held) for each in good if each.held is not None]
        )
        return {**{path: version for path, version in done.items() if version is not None}, **written}

    async def discard(self, unwanted: Sequence[Prepared]) -> None:
        """Do nothing: unpublished content is only in memory."""

    async def remove(self, paths: Sequence[str]) -> None:
        await drop_blobs(self.database, self.name, list(paths))

    async def archive(self, paths: Sequence[str]) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        await archive_blobs(self.database, self.name, list(paths), f".archive/{stamp}/")

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        await change_blob(
            self.database, self.name, manifest_path(directory), lambda data: changed_manifest(data, entries)
        )

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        path = manifest_path(directory)
        found = await read_blobs(self.database, self.name, [path])
        return entries_in(found[0][1], path) if found else {}

    async def sweep(self, folders: Iterable[str], alive: Alive) -> None:
        """Do nothing: no unpublished content is ever stored."""
