"""States in files: the default, readable with `ls` and `cat`.

A state is written under a hidden name, synced and renamed, so that no reader sees a part of it. Many files are synced
by one call, because one call per file is slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.stores.base import (
    FORGOTTEN_AFTER,
    NO_BUILDER,
    Alive,
    ContentError,
    ManifestEntry,
    NotHereError,
    Prepared,
    Scan,
    SeenFile,
    StateDraft,
    StateStoreError,
    Unreadable,
    hash_content,
    hash_pieces,
)
from tidemill.pipelines.stores.folder_walk import Known, Walk, signature
from tidemill.pipelines.stores.manifest import change_manifest, read_manifest

CHUNK = 1 << 20
TEMPORARY = ".tidemill-"  # prefix of hidden names
IDENTITY = f"{TEMPORARY}root"
ARCHIVE = ".archive"
COARSE_NS = 1_000_000_000  # smaller differences of clocks are ignored
_REMEDIES: dict[int | None, str] = {
    errno.EISDIR: ": a folder is in its place, move it away",
    errno.ENOTDIR: ": a file is in the place of its folder, move it away",
    errno.EEXIST: ": a file is in the place of its folder, move it away",
    errno.ENAMETOOLONG: ": shorten the name",
    errno.EACCES: ": give this user the right to write there",
    errno.EPERM: ": give this user the right to write there",
    errno.EROFS: ": mount it for writing",
    errno.ENOSPC: ": free some space",
    errno.EDQUOT: ": free some space",
}
_SYNC_TOGETHER = 8  # with more files, one sync of the whole file system is cheaper


class FileStates:
    """States as files under a root."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.builder = NO_BUILDER
        self.skew_ns = 0  # how far the file system's clock is ahead of this host's
        self._found: tuple[int, int] | None = None  # the device and inode of the root that was last scanned

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileStates) and other.root == self.root

    def __hash__(self) -> int:
        return hash(self.root)

    def place(self, path: str) -> Path:
        return self.root / path

    async def identify(self) -> str:
        return self._read_id() or await asyncio.to_thread(self._create_id)

    def _create_id(self) -> str:
        """The id in the root's own hidden file: a host with another folder at the same path does not have it."""
        temporary = f"{self.root}/{TEMPORARY}{self.builder}-{os.urandom(6).hex()}.tmp"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with open(temporary, "x") as opened:
                opened.write(os.urandom(8).hex())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, self.root / IDENTITY)  # Of several writers, one wins.
        except OSError as error:
            raise self._unwritable(IDENTITY, error) from error
        finally:
            _unlink(temporary)
        return self._read_id() or ""

    async def check_identity(self, id: str) -> None:
        found = self._read_id()
        if found != id:
            what = f"has no {IDENTITY}" if found is None else f"is another folder ({IDENTITY} says {found}, not {id})"
            raise NotHereError(
                f"{self.root} on {socket.gethostname()} {what}: mount the pipeline's root there, or do not serve its "
                "queue on this host"
            )

    def _read_id(self) -> str | None:
        try:
            return (self.root / IDENTITY).read_text().strip()
        except OSError:
            return None

    async def scan(self, patterns: Sequence[Pattern]) -> Scan:
        return await asyncio.to_thread(self.scan_now, patterns)

    def scan_now(self, patterns: Sequence[Pattern]) -> Scan:
        """The same, synchronously."""
        self._found = self._find_root() or self._found
        return Walk(str(self.root), patterns, skew_ns=self.skew_ns).run()

    def check_root(self) -> None:
        """Raise an error if the root is no longer the folder that was scanned: moved, deleted or unmounted."""
        if self._found is not None and (now := self._find_root()) != self._found:
            what = "is gone" if now is None else "is another folder than before"
            raise StateStoreError(f"{self.root} {what}: bring it back, and run this again")

    def check_has_states(self, pipeline: str) -> None:
        """Raise an error if there is nothing, where the states of a pipeline are known to be."""
        if not self.root.is_dir():
            raise StateStoreError(
                f"there is no folder {self.root} here, where pipeline {pipeline} keeps its states: run this on the "
                "host that has the folder, or create it with its inputs to build everything again"
            )
        if not any(self.root.iterdir()):  # The folder on which another one is to be mounted is empty.
            raise StateStoreError(
                f"the folder {self.root} here is empty, and pipeline {pipeline} keeps its states there: mount it, run "
                "this on the host that has it, or put its inputs there to build everything again"
            )

    def _find_root(self) -> tuple[int, int] | None:
        try:
            found = os.stat(self.root)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def scan_folders(
        self, patterns: Sequence[Pattern], known: Known, changed: Iterable[str], folders: Iterable[str]
    ) -> Scan:
        """The same for folders that have `changed` or are new; files with `known` signatures are skipped."""
        return Walk(str(self.root), patterns, known, skew_ns=self.skew_ns).run_in(changed, folders)

    def measure_skew(self) -> float:
        """How many seconds the file system's clock is ahead of this host's.

        Files have the file system's time, which decides whether one was changed just now.
        """
        probe = f"{self.root}/{TEMPORARY}{self.builder}-{os.urandom(6).hex()}.clock"
        try:
            opened = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except OSError:
            return 0.0  # In a read-only file system no file changes meanwhile.
        try:
            now = time.time_ns()
            ahead = os.fstat(opened).st_mtime_ns - now
        finally:
            os.close(opened)
            _unlink(probe)
        self.skew_ns = ahead if abs(ahead) > COARSE_NS else 0
        return self.skew_ns / 1e9

    def changed_folders(self, folders: Mapping[str, int]) -> list[str]:
        """The folders among these in which files were added or removed since."""
        return [folder for folder, before in folders.items() if self.folder_time(folder) != before]

    def folder_time(self, folder: str) -> int:
        """When files were last added to a folder or removed from it; 0 if unknown."""
        try:
            return os.stat(f"{self.root}/{folder}").st_mtime_ns
        except OSError:
            return 0

    async def read_signatures(self, paths: Iterable[str]) -> dict[str, int | None]:
        return self.read_signatures_now(paths)

    def read_signatures_now(self, paths: Iterable[str]) -> dict[str, int | None]:
        """The same, synchronously."""
        return {path: self._signature(path) for path in paths}

    def _signature(self, path: str) -> int | None:
        try:
            found = os.stat(f"{self.root}/{path}")
        except (OSError, ValueError):
            return None
        return signature(found) if stat.S_ISREG(found.st_mode) else None

    async def contents(self, paths: Sequence[str]) -> dict[str, SeenFile | Unreadable | None]:
        return await asyncio.to_thread(self.contents_now, paths)

    def contents_now(self, paths: Sequence[str]) -> dict[str, SeenFile | Unreadable | None]:
        """The same, synchronously."""
        return {path: self._seen(path) for path in paths}

    def _seen(self, path: str) -> SeenFile | Unreadable | None:
        try:
            opened = os.open(f"{self.root}/{path}", os.O_RDONLY)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            return Unreadable(f"{self.root}/{path} cannot be read: {error.strerror}")
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
            return SeenFile(digest.hexdigest(), size, signature(after))
        except OSError as error:
            return Unreadable(f"{self.root}/{path} cannot be read: {error.strerror}")
        finally:
            os.close(opened)

    async def read(self, path: str) -> bytes:
        return self.read_now(path)

    def read_now(self, path: str) -> bytes:
        """The same, synchronously."""
        with open(f"{self.root}/{path}", "rb", buffering=0) as opened:
            return opened.read()

    async def stream(self, path: str) -> AsyncIterator[bytes]:
        with await asyncio.to_thread(open, self.place(path), "rb") as opened:
            while chunk := await asyncio.to_thread(opened.read, CHUNK):
                yield chunk

    def pieces_now(self, path: str) -> Iterator[bytes]:
        """The content in chunks, synchronously."""
        with open(self.place(path), "rb") as opened:
            while chunk := opened.read(CHUNK):
                yield chunk

    async def prepare(self, drafts: Sequence[StateDraft]) -> list[Prepared]:
        return await asyncio.to_thread(self.prepare_now, drafts)

    def prepare_now(self, drafts: Sequence[StateDraft]) -> list[Prepared]:
        """The same, synchronously."""
        together = len(drafts) >= _SYNC_TOGETHER and _find_syncfs() is not None
        inside: dict[str, bool] = {}
        done = [self._prepare(draft, inside, sync=not together) for draft in drafts]
        if together and done:
            try:
                _sync_all(self.root)
            except OSError as error:
                for each in done:
                    _unlink(each.held)
                    each.error = each.error or str(self._unwritable(each.path, error))
        return done

    def _prepare(self, draft: StateDraft, inside: dict[str, bool], *, sync: bool) -> Prepared:
        try:
            self._check_inside(draft.path.rpartition("/")[0], inside)
            return self._write(draft, sync=sync)
        except (ContentError, StateStoreError) as error:
            return draft.failed(error)
        except (OSError, ValueError) as error:
            return draft.failed(self._unwritable(draft.path, error))

    def _unwritable(self, path: str, error: OSError | ValueError) -> StateStoreError:
        """Why a state cannot be put in place, and what to do about it."""
        number = error.errno if isinstance(error, OSError) else None
        why = (error.strerror if isinstance(error, OSError) else None) or str(error)
        return StateStoreError(f"{self.root}/{path} cannot be written: {why}{_REMEDIES.get(number, '')}")

    def _write(self, draft: StateDraft, *, sync: bool) -> Prepared:
        folder = draft.path.rpartition("/")[0]
        temporary = f"{self.root}/{folder}/{TEMPORARY}{self.builder}-{os.urandom(6).hex()}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            opened = os.open(temporary, flags, 0o644)
        except FileNotFoundError:
            self.check_root()
            os.makedirs(f"{self.root}/{folder}", exist_ok=True)
            opened = os.open(temporary, flags, 0o644)
        found: dict[str, Any] = {}
        try:
            if isinstance(draft.content, bytes):
                _write_all(opened, draft.content)
                found = {"content": hash_content(draft.content), "size": len(draft.content)}
            else:
                for piece in hash_pieces(draft.content, found):
                    _write_all(opened, piece)
            if sync:
                os.fsync(opened)
        except BaseException:
            _unlink(temporary)
            raise
        finally:
            os.close(opened)
        return draft.prepared(found["content"], found["size"], temporary)

    def _check_inside(self, folder: str, checked: dict[str, bool]) -> None:
        """Check that a folder is inside the root after symlinks are resolved."""
        known = checked.get(folder)
        if known is None:
            root, real = os.path.realpath(self.root), os.path.realpath(f"{self.root}/{folder}")
            known = checked[folder] = real == root or real.startswith(f"{root}/")
        if not known:
            raise StateStoreError(f"{self.root}/{folder} leads out of {self.root}: nothing is written there")

    async def publish(self, ready: Sequence[Prepared]) -> dict[str, int]:
        return await asyncio.to_thread(self.publish_now, ready)

    def publish_now(self, ready: Sequence[Prepared]) -> dict[str, int]:
        """The same, synchronously."""
        done: dict[str, int] = {}
        for each in ready:
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
                each.error = str(self._unwritable(each.path, error))
        return done

    async def discard(self, unwanted: Sequence[Prepared]) -> None:
        for each in unwanted:
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
                os.replace(self.place(path), target)
        await self.remove(paths)

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        folder = self.root / directory
        if folder.is_dir():
            await asyncio.to_thread(change_manifest, folder, entries)

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]:
        return await asyncio.to_thread(read_manifest, self.root / directory)

    async def sweep(self, folders: Iterable[str], alive: Alive) -> None:
        left = await asyncio.to_thread(self._leftovers, ["", *folders])
        if left:
            living = await alive(left)
            for builder, paths in left.items():
                for path in paths if builder not in living else ():
                    if builder != NO_BUILDER or _is_older(path, FORGOTTEN_AFTER):
                        _unlink(path)

    def _leftovers(self, folders: Iterable[str]) -> dict[str, list[str]]:
        """The unpublished files in these folders, by builder."""
        found: dict[str, list[str]] = {}
        for folder in dict.fromkeys(folders):
            try:
                names = os.listdir(f"{self.root}/{folder}")
            except OSError:
                continue
            for name in names:
                if name.startswith(TEMPORARY) and name.endswith((".tmp", ".clock")):
                    builder = name.removeprefix(TEMPORARY).partition("-")[0]
                    found.setdefault(builder, []).append(f"{self.root}/{folder}{name}")
        return found


def _write_all(opened: int, data: bytes) -> None:
    while data:
        data = data[os.write(opened, data) :]


def _is_older(path: str, seconds: float) -> bool:
    try:
        return os.lstat(path).st_mtime < time.time() - seconds
    except OSError:
        return False


def _unlink(path: str | None) -> None:
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)


@cache
def _find_syncfs() -> Any:
    """The `syncfs` system call, if there is one."""
    if sys.platform != "linux":
        return None
    import ctypes  # slow to load

    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)


def _sync_all(root: Path) -> None:
    """Sync the root's whole file system."""
    import ctypes

    opened = os.open(root, os.O_RDONLY)
    try:
        if _find_syncfs()(opened) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(opened)
