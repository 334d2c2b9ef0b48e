"""States in an object store: S3 and what speaks like it, through obstore (`pip install tidemill[s3]`).

from obstore.store import S3Store

Pipeline("blog", store=ObjectStates(S3Store("bucket", prefix="blog/")))

A put is atomic by itself. It is made on the condition that the object is still the one that was seen, or still is not
there, so that of two builders who do not know of each other only one has its way.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.pipelines.pattern import Pattern
from tidemill.pipelines.states import (
    MANIFEST,
    Draft,
    Manifest,
    ManifestEntry,
    Prepared,
    Seen,
    StoreTrouble,
    Survey,
    hash_content,
)

AT_ONCE = 32
_TRIES = 20


class ObjectStates:
    """States as objects in a store of obstore's."""

    def __init__(self, store: Any) -> None:
        try:
            import obstore
        except ImportError as error:
            raise ConfigError("states in an object store need obstore: pip install 'tidemill[s3]'") from error
        self._obstore = obstore
        self.store = store
        self._tags: dict[str, tuple[int, Any]] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStates) and (other.store is self.store or other.store == self.store)

    def __hash__(self) -> int:
        return hash(str(self.store))

    def open(self, database: Any) -> ObjectStates:
        """These states, for one process."""
        return self

    def _note(self, meta: Mapping[str, Any]) -> int:
        """The signature of an object, and the tag by which its store knows this version of it."""
        tag = meta.get("e_tag")
        text = f"{tag}|{meta.get('version')}|{meta.get('size')}|{meta.get('last_modified')}"
        signature = int.from_bytes(blake2b(text.encode(), digest_size=7).digest(), "big") or 1
        self._tags[str(meta["path"])] = (signature, tag)
        return signature

    async def survey(self, patterns: Sequence[Pattern]) -> Survey:
        survey = Survey({}, {pattern: {} for pattern in patterns}, [], set())
        for folder in _outermost({pattern.folder for pattern in patterns}):
            try:
                stream = self.store.list(prefix=f"{folder}/" if folder else None)
                async for chunk in stream:
                    for meta in chunk:
                        path = str(meta["path"])
                        hit = [pattern for pattern in survey.matched if pattern.values(path) is not None]
                        if hit:
                            survey.signatures[path] = self._note(meta)
                            for pattern in hit:
                                survey.matched[pattern][path] = None
            except FileNotFoundError:
                continue
            except OSError as error:
                survey.problems.append(f"{folder or 'the store'} cannot be listed: {error}")
        return survey

    async def look(self, paths: Iterable[str]) -> dict[str, int | None]:
        wanted = list(paths)
        found = await asyncio.gather(*(self._head(path) for path in wanted))
        return dict(zip(wanted, found, strict=True))

    async def _head(self, path: str) -> int | None:
        async with self._room:
            try:
                return self._note(await self.store.head_async(path))
            except FileNotFoundError:
                return None

    async def contents(self, paths: Sequence[str]) -> dict[str, Seen | None]:
        found = await asyncio.gather(*(self._seen(path) for path in paths))
        return dict(zip(paths, found, strict=True))

    async def _seen(self, path: str) -> Seen | None:
        async with self._room:
            try:
                answer = await self.store.get_async(path)
            except FileNotFoundError:
                return None
            digest, size = blake2b(digest_size=16), 0
            async for piece in answer.stream():
                digest.update(piece)
                size += len(piece)
            return Seen(digest.hexdigest(), size, self._note(answer.meta))

    async def read(self, path: str) -> bytes:
        async with self._room:
            answer = await self.store.get_async(path)
            return bytes(await answer.bytes_async())

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        answer = await self.store.get_async(path)
        async for piece in answer.stream():
            yield bytes(piece)

    async def prepare(self, drafts: Sequence[Draft]) -> list[Prepared]:
        """Contents are held here: a put shows all of an object at once, or nothing."""
        prepared = []
        for draft in drafts:
            data = draft.content if isinstance(draft.content, bytes) else b"".join(draft.content)
            prepared.append(
                Prepared(draft.path, hash_content(data), len(data), draft.needs, draft.entity, draft.before, data)
            )
        return prepared

    async def publish(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        needed = await self.look({path for each in prepared for path in each.needs})
        good = [each for each in prepared if all(needed[path] == want for path, want in each.needs.items())]
        signatures = await asyncio.gather(*(self._put(each) for each in good))
        return {each.path: found for each, found in zip(good, signatures, strict=True) if found is not None}

    async def _put(self, each: Prepared) -> int | None:
        """Put one object, if it is still what it was."""
        if each.held is None:
            found = await self._head(each.path)
            return found if found == each.before else None
        mode: Any = "create"
        if each.before is not None:
            signature, tag = self._tags.get(each.path, (0, None))
            mode = {"e_tag": tag} if signature == each.before and tag is not None else "overwrite"
        try:
            async with self._room:
                await self._conditional(each.path, each.held, mode)
        except (FileExistsError, FileNotFoundError):
            return None
        except Exception as error:
            if type(error).__name__ in ("AlreadyExistsError", "PreconditionError", "NotFoundError"):
                return None
            raise StoreTrouble(f"{each.path} cannot be put: {error}") from error
        return await self._head(each.path)

    async def _conditional(self, path: str, data: bytes, mode: Any) -> None:
        try:
            await self.store.put_async(path, data, mode=mode)
        except Exception as error:
            if type(error).__name__ != "NotImplementedError" and not isinstance(error, NotImplementedError):
                raise
            await self.store.put_async(path, data)  # The store knows no conditions; the database still does.

    async def discard(self, prepared: Sequence[Prepared]) -> None:
        """Nothing was stored yet."""

    async def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            try:
                await self.store.delete_async(path)
            except FileNotFoundError:
                continue

    async def archive(self, paths: Sequence[str]) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for path in paths:
            await self.store.rename_async(path, f".archive/{stamp}/{path}")

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        path = f"{directory}/{MANIFEST}" if directory else MANIFEST
        for _ in range(_TRIES):
            before = await self._head(path)
            known = {} if before is None else await self.manifest(directory)
            for name, entry in entries.items():
                if entry is None:
                    known.pop(name, None)
                else:
                    known[name] = entry
            data = msgspec.json.encode(Manifest({name: known[name] for name in sorted(known)}))
            if await self._put(Prepared(path, "", len(data), {}, before=before, held=data)) is not None:
                return
        raise StoreTrouble(f"{path} is changed by others all the time")

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        path = f"{directory}/{MANIFEST}" if directory else MANIFEST
        try:
            return msgspec.json.decode(await self.read(path), type=Manifest).states
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            raise StoreTrouble(f"{path} cannot be read: {error}") from error


def _outermost(folders: set[str]) -> list[str]:
    """Folders without those that are inside of others."""
    return sorted(one for one in folders if not any(one.startswith(f"{o}/") or (not o and one) for o in folders))
