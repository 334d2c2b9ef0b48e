"""States in files: the default, and the one that a person can look at with `ls` and `cat`.

A state is written under a hidden name, made durable, and renamed: nobody ever sees a part of it. Many together are
made durable by one call, since a call for each is what makes writing files slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import secrets
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

from tidemill.pipelines.log import log
from tidemill.pipelines.manifest import change_manifest, read_manifest
from tidemill.pipelines.pattern import Pattern
from tidemill.pipelines.states import Draft, ManifestEntry, Prepared, Seen, StoreTrouble, Survey, hash_content
from tidemill.pipelines.walk import Known, Walk, signature

CHUNK = 1 << 20
TEMPORARY = ".tidemill-"  # how hidden names begin
ARCHIVE = ".archive"
_SYNC_TOGETHER = 8  # from so many files on, one call for the whole file system is cheaper


class FileStates:
    """States as files under a root."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._inside: dict[str, bool] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileStates) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def path(self, path: str) -> Path:
        return self.root / path

    async def survey(self, patterns: Sequence[Pattern]) -> Survey:
        return await asyncio.to_thread(self.survey_now, patterns)

    def survey_now(self, patterns: Sequence[Pattern], known: Known | None = None) -> Survey:
        """The same, in this thread; with `known` signatures, only files that are not among them are looked at."""
        return Walk(str(self.root), patterns, known).run()

    def changed_folders(self, folders: Mapping[str, int]) -> list[str]:
        """Those of these folders that files came to or went from since."""
        changed = []
        for folder, before in folders.items():
            try:
                if os.stat(f"{self.root}/{folder}").st_mtime_ns != before:
                    changed.append(folder)
            except OSError:
                changed.append(folder)
        return changed

    async def look(self, paths: Iterable[str]) -> dict[str, int | None]:
        return self.look_now(paths)

    def look_now(self, paths: Iterable[str]) -> dict[str, int | None]:
        """The same, in this thread."""
        return {path: self._signature(path) for path in paths}

    def _signature(self, path: str) -> int | None:
        try:
            found = os.stat(f"{self.root}/{path}")
        except (OSError, ValueError):
            return None
        return signature(found) if stat.S_ISREG(found.st_mode) else None

    async def contents(self, paths: Sequence[str]) -> dict[str, Seen | None]:
        return await asyncio.to_thread(self.contents_now, paths)

    def contents_now(self, paths: Sequence[str]) -> dict[str, Seen | None]:
        """The same, in this thread."""
        return {path: self._seen(path) for path in paths}

    def _seen(self, path: str) -> Seen | None:
        try:
            opened = os.open(f"{self.root}/{path}", os.O_RDONLY)
        except OSError:
            return None
        try:
            before = os.fstat(opened)
            if not stat.S_ISREG(before.st_mode):
                return None
            digest, size = blake2b(digest_size=16), 0
            while chunk := os.read(opened, CHUNK):
                digest.update(chunk)
                size += len(chunk)
                if len(chunk) >= before.st_size:
                    break
            after = os.fstat(opened)
            if signature(after) != signature(before) or size != after.st_size:
                return None
            return Seen(digest.hexdigest(), size, signature(after))
        except OSError as error:
            raise StoreTrouble(f"{self.root}/{path} cannot be read: {error.strerror}") from error
        finally:
            os.close(opened)

    async def read(self, path: str) -> bytes:
        return self.read_now(path)

    def read_now(self, path: str) -> bytes:
        """The same, in this thread."""
        with open(f"{self.root}/{path}", "rb", buffering=0) as opened:
            return opened.read()

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(open, self.path(path), "rb") as opened:
            while chunk := await asyncio.to_thread(opened.read, CHUNK):
                yield chunk

    async def prepare(self, drafts: Sequence[Draft]) -> list[Prepared]:
        return await asyncio.to_thread(self.prepare_now, drafts)

    def prepare_now(self, drafts: Sequence[Draft]) -> list[Prepared]:
        """The same, in this thread."""
        prepared: list[Prepared] = []
        together = len(drafts) >= _SYNC_TOGETHER and _syncfs is not None
        try:
            for draft in drafts:
                prepared.append(self._write(draft, sync=not together))
            if together and prepared:
                _sync_all(self.root)
        except OSError as error:
            for each in prepared:
                _unlink(each.held)
            raise StoreTrouble(
                f"{self.root}: a state cannot be written: {error.strerror}; make room or mend it"
            ) from error
        return prepared

    def _write(self, draft: Draft, *, sync: bool) -> Prepared:
        folder = draft.path.rpartition("/")[0]
        self._check_inside(folder)
        temporary = f"{self.root}/{folder}/{TEMPORARY}{secrets.token_hex(6)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            opened = os.open(temporary, flags, 0o644)
        except FileNotFoundError:
            os.makedirs(f"{self.root}/{folder}", exist_ok=True)
            opened = os.open(temporary, flags, 0o644)
        content, size = "", 0
        try:
            if isinstance(draft.content, bytes):
                _write_all(opened, draft.content)
                content, size = hash_content(draft.content), len(draft.content)
            else:
                digest = blake2b(digest_size=16)
                for piece in draft.content:
                    _write_all(opened, piece)
                    digest.update(piece)
                    size += len(piece)
                content = digest.hexdigest()
            if sync:
                os.fsync(opened)
        except BaseException:
            _unlink(temporary)
            raise
        finally:
            os.close(opened)
        return Prepared(draft.path, content, size, draft.needs, draft.entity, draft.before, temporary)

    def _check_inside(self, folder: str) -> None:
        """A folder must be inside of the root also when links are followed."""
        known = self._inside.get(folder)
        if known is None:
            root, real = os.path.realpath(self.root), os.path.realpath(f"{self.root}/{folder}")
            known = self._inside[folder] = real == root or real.startswith(f"{root}/")
        if not known:
            raise StoreTrouble(f"{self.root}/{folder} leads out of {self.root}: nothing is written there")

    async def publish(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        return await asyncio.to_thread(self.publish_now, prepared)

    def publish_now(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        """The same, in this thread."""
        done: dict[str, int] = {}
        for each in prepared:
            if any(self._signature(path) != needed for path, needed in each.needs.items()):
                _unlink(each.held)
                continue
            target = f"{self.root}/{each.path}"
            try:
                if each.held is not None:
                    os.replace(each.held, target)
                found = signature(os.stat(target))
                if each.held is not None or found == each.before:
                    done[each.path] = found
            except OSError as error:
                _unlink(each.held)
                log.error("a state could not be put in place", path=each.path, error=str(error))
        return done

    async def discard(self, prepared: Sequence[Prepared]) -> None:
        for each in prepared:
            _unlink(each.held)

    async def remove(self, paths: Sequence[str]) -> None:
        by_folder: dict[str, list[str]] = {}
        for path in paths:
            folder, _, name = path.rpartition("/")
            by_folder.setdefault(folder, []).append(name)
        for folder, names in by_folder.items():
            await self.keep_manifest(folder, dict.fromkeys(names))
        for path in paths:
            _unlink(f"{self.root}/{path}")

    async def archive(self, paths: Sequence[str]) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        for path in paths:
            target = self.root / ARCHIVE / stamp / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path(path), target)
        await self.remove(paths)

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        folder = self.root / directory
        if folder.is_dir():
            await asyncio.to_thread(change_manifest, folder, entries)

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        return await asyncio.to_thread(read_manifest, self.root / directory)

    def sweep_temporaries(self, folders: Iterable[str], *, older: float = 3600) -> int:
        """Remove what builders left behind that died before they put it in place."""
        swept, limit = 0, time.time() - older
        for folder in folders:
            try:
                with os.scandir(self.root / folder) as entries:
                    for entry in entries:
                        if entry.name.startswith(TEMPORARY) and entry.stat(follow_symlinks=False).st_mtime < limit:
                            _unlink(entry.path)
                            swept += 1
            except OSError:
                continue
        return swept


def _write_all(opened: int, data: bytes) -> None:
    while data:
        data = data[os.write(opened, data) :]


def _unlink(path: str | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)


_syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None


def _sync_all(root: Path) -> None:
    """Make everything that was written to a root's file system durable."""
    opened = os.open(root, os.O_RDONLY)
    try:
        if _syncfs is None or _syncfs(opened) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(opened)
