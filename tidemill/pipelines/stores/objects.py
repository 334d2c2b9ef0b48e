"""States in an object store: S3 and compatible ones, through obstore (`pip install tidemill[s3]`).

from obstore.store import S3Store

Pipeline("blog", store=ObjectStates(S3Store("bucket", prefix="blog/")))

A put is atomic. It is conditional on the object being unchanged or still missing, so that only one of two concurrent
builders succeeds. Content in chunks is never held in memory as a whole: it is uploaded under a hidden name and moved.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.stores.base import (
    FORGOTTEN_AFTER,
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

AT_ONCE = 32
PARTS_AT_ONCE = 3  # per upload, 5 MiB each: the memory limit of a large content
UPLOADS = ".tidemill/uploads/"
_TRIES = 20


class Uploaded(msgspec.Struct, frozen=True):
    """Content that is in the store under a hidden name."""

    key: str


class ObjectStates:
    """States as objects in an obstore store."""

    def __init__(self, store: Any) -> None:
        try:
            import obstore
        except ImportError as error:
            raise ConfigError("states in an object store need obstore: pip install 'tidemill[s3]'") from error
        self._obstore = obstore
        self.store = store
        self.builder = NO_BUILDER
        self._tags: dict[str, tuple[int, Any]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStates) and (other.store is self.store or other.store == self.store)

    def __hash__(self) -> int:
        return hash(str(self.store))

    def __str__(self) -> str:
        return f"objects ({type(self.store).__name__})"

    def open(self, database: Any) -> ObjectStates:
        """These states, for one process."""
        return self

    def _note(self, meta: Mapping[str, Any]) -> int:
        """The signature of an object; also stores its tag, which identifies this version in the store."""
        tag = meta.get("e_tag")
        text = f"{tag}|{meta.get('version')}|{meta.get('size')}|{meta.get('last_modified')}"
        signature = int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big") or 1
        self._tags[str(meta["path"])] = (signature, tag)
        return signature

    async def identify(self) -> str:
        return ""  # Each host that reaches the store has the same states.

    async def check_identity(self, id: str) -> None:
        """Do nothing: each host that reaches the store has the same states."""

    async def scan(self, patterns: Sequence[Pattern]) -> Scan:
        scan = Scan({}, {pattern: {} for pattern in patterns}, [], set())
        for folder in _outermost({pattern.folder for pattern in patterns}):
            try:
                stream = self.store.list(prefix=f"{folder}/" if folder else None)
                async for chunk in stream:
                    for meta in chunk:
                        path = str(meta["path"])
                        hit = [pattern for pattern in scan.matched if pattern.values(path) is not None]
                        if hit:
                            scan.signatures[path] = self._note(meta)
                            for pattern in hit:
                                scan.matched[pattern][path] = None
            except FileNotFoundError:
                continue
            except Exception as error:
                raise _unreachable(folder or "its root", error) from error
        return scan

    async def read_signatures(self, paths: Iterable[str]) -> dict[str, int | None]:
        wanted = list(paths)
        found = await asyncio.gather(*(self._head(path) for path in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _head(self, path: str) -> int | None:
        async with self._room:
            try:
                return self._note(await self.store.head_async(path))
            except FileNotFoundError:
                return None
            except Exception as error:
                raise _unreachable(path, error) from error

    async def contents(self, paths: Sequence[str]) -> dict[str, SeenFile | Unreadable | None]:
        found = await asyncio.gather(*(self._seen(path) for path in paths))
        return dict(zip(paths, found, strict=True))

    async def _seen(self, path: str) -> SeenFile | Unreadable | None:
        async with self._room:
            digest, size = blake2b(digest_size=16), 0
            try:
                answer = await self.store.get_async(path)
                async for piece in answer.stream():
                    digest.update(piece)
                    size += len(piece)
            except FileNotFoundError:
                return None
            except Exception as error:  # noqa: BLE001 - stores raise errors of their own
                return Unreadable(str(_unreachable(path, error)))
            return SeenFile(digest.hexdigest(), size, self._note(answer.meta))

    async def read(self, path: str) -> bytes:
        async with self._room:
            try:
                answer = await self.store.get_async(path)
                return bytes(await answer.bytes_async())
            except FileNotFoundError:
                raise
            except Exception as error:
                raise _unreachable(path, error) from error

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        answer = await self.store.get_async(path)
        async for piece in answer.stream():
            yield bytes(piece)

    def read_now(self, path: str) -> bytes:
        """The same as `read`, synchronously."""
        return bytes(self.store.get(path).bytes())

    def pieces_now(self, path: str) -> Iterator[bytes]:
        """The content in chunks, synchronously."""
        for piece in self.store.get(path).stream():
            yield bytes(piece)

    def place(self, path: str) -> None:
        """None: objects are not files of this machine."""

    async def prepare(self, drafts: Sequence[StateDraft]) -> list[Prepared]:
        return [await self._prepare(draft) for draft in drafts]

    async def _prepare(self, draft: StateDraft) -> Prepared:
        """Keep content in memory; upload content in chunks under a hidden name, because a put is all or nothing."""
        if isinstance(draft.content, bytes):
            return draft.prepared(hash_content(draft.content), len(draft.content), draft.content)
        found: dict[str, Any] = {}
        trouble: list[ContentError] = []
        pieces = hash_pieces(draft.content, found)

        async def upload() -> AsyncIterator[bytes]:
            try:
                while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                    yield piece
            except ContentError as error:
                trouble.append(error)
                raise

        key = f"{UPLOADS}{self.builder}-{secrets.token_hex(12)}"
        try:
            async with self._room:
                await self.store.put_async(key, upload(), max_concurrency=PARTS_AT_ONCE)
        except Exception as error:  # noqa: BLE001 - stores raise errors of their own; each of them fails this state
            if trouble:
                await self._drop(key)
                return draft.failed(trouble[0])
            return draft.failed(StateStoreError(f"{draft.path} cannot be uploaded: {error}"))
        return draft.prepared(found["content"], found["size"], Uploaded(key))

    async def publish(self, ready: Sequence[Prepared]) -> dict[str, int]:
        try:
            needed = await self.read_signatures({path for each in ready for path in each.needs})
        except StateStoreError as error:
            for each in ready:
                each.error = str(error)
            return {}
        good = [each for each in ready if all(needed[path] == want for path, want in each.needs.items())]
        signatures = await asyncio.gather(*(self._put(each) for each in good))
        return {each.path: found for each, found in zip(good, signatures, strict=True) if found is not None}

    async def _put(self, each: Prepared) -> int | None:
        """Put one object, if it is unchanged."""
        if each.held is None:
            found = await self._head(each.path)
            return found if found == each.before else None
        try:
            if isinstance(each.held, Uploaded):
                if each.before is not None and await self._head(each.path) != each.before:
                    return None
                async with self._room:
                    await self.store.rename_async(each.held.key, each.path, overwrite=each.before is not None)
            else:
                async with self._room:
                    await self._conditional(each.path, each.held, self._mode(each))
        except (FileExistsError, FileNotFoundError):
            return None
        except Exception as error:  # noqa: BLE001 - stores raise errors of their own; each of them fails this state
            if type(error).__name__ in ("AlreadyExistsError", "PreconditionError", "NotFoundError"):
                return None
            each.error = f"{each.path} cannot be written: {error}"
            return None
        try:
            return await self._head(each.path)
        except StateStoreError as error:
            each.error = str(error)
            return None

    def _mode(self, each: Prepared) -> Any:
        """The condition of a put."""
        if each.before is None:
            return "create"
        signature, tag = self._tags.get(each.path, (0, None))
        return {"e_tag": tag} if signature == each.before and tag is not None else "overwrite"

    async def _conditional(self, path: str, data: bytes, mode: Any) -> None:
        try:
            await self.store.put_async(path, data, mode=mode)
        except Exception as error:
            if type(error).__name__ != "NotImplementedError" and not isinstance(error, NotImplementedError):
                raise
            await self.store.put_async(path, data)  # No conditional puts here: the database detects conflicts.

    async def discard(self, unwanted: Sequence[Prepared]) -> None:
        for each in unwanted:
            if isinstance(each.held, Uploaded):
                await self._drop(each.held.key)

    async def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            await self._drop(path)

    async def _drop(self, path: str) -> None:
        try:
            await self.store.delete_async(path)
        except FileNotFoundError:
            return

    async def sweep(self, folders: Iterable[str], alive: Alive) -> None:
        """Delete uploads of dead builders; they are all in one folder."""
        limit, found = time.time() - FORGOTTEN_AFTER, dict[str, str]()
        async for chunk in self.store.list(prefix=UPLOADS):
            for meta in chunk:
                builder = str(meta["path"]).removeprefix(UPLOADS).partition("-")[0]
                if builder != NO_BUILDER or meta["last_modified"].timestamp() < limit:
                    found[str(meta["path"])] = builder
        living = await alive(set(found.values())) if found else set()
        for path, builder in found.items():
            if builder not in living:
                await self._drop(path)

    async def archive(self, paths: Sequence[str]) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for path in paths:
            await self.store.rename_async(path, f".archive/{stamp}/{path}")

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        path = manifest_path(directory)
        for _ in range(_TRIES):
            before = await self._head(path)
            data = changed_manifest(None if before is None else await self.read(path), entries)
            wanted = Prepared(path, "", len(data), {}, before=before, held=data)
            if await self._put(wanted) is not None:
                return
            if wanted.error is not None:
                raise StateStoreError(wanted.error)
        raise StateStoreError(f"{path} keeps being changed by other writers")

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        path = manifest_path(directory)
        try:
            return entries_in(await self.read(path), path)
        except FileNotFoundError:
            return {}


def _unreachable(path: str, error: Exception) -> StateStoreError:
    """The error of a store that does not answer, or refuses."""
    message = " ".join(str(error).split())[:300]
    return StateStoreError(
        f"the object store cannot be reached for {path}: {message}; check its address, its credentials and the network"
    )


def _outermost(folders: set[str]) -> list[str]:
    """Folders without those that are inside others."""
    return sorted(one for one in folders if not any(one.startswith(f"{o}/") or (not o and one) for o in folders))
