"""The folder of workflow files that an editor may read and change, and nothing outside of it.

A version is a hash of a file's bytes. A file is saved only over the version that was read, and replaced as a whole: a
reader sees the old text or the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path, PurePosixPath

import msgspec

from tidemill.core.errors import ConfigError, NotFoundError, VersionError

SUFFIXES = (".json", ".yaml", ".yml")
MOST_TEXT = 512 * 1024
MOST_FILES = 500
MOST_DEPTH = 4


class FoundFile(msgspec.Struct, frozen=True):
    """A file of the folder."""

    path: str
    size: int
    changed_at: float


class FileText(msgspec.Struct, frozen=True):
    """A file's text, and the version that it is."""

    text: str
    version: str


class WorkflowFiles:
    """One folder, and the files in it."""

    def __init__(self, folder: str | None) -> None:
        self._folder = None if folder is None else Path(folder)

    @property
    def root(self) -> Path:
        if self._folder is None:
            raise NotFoundError(
                "this application has no folder of workflow files: "
                'name one with App(..., workflow_folder="workflows") or TIDEMILL_WORKFLOW_FOLDER'
            )
        return self._folder

    @property
    def shown(self) -> str | None:
        return None if self._folder is None else str(self._folder)

    def list(self) -> list[FoundFile]:
        """All workflow files, by name; not those whose names begin with a dot."""
        return sorted(self._walk(self.root, 0), key=lambda each: each.path)[:MOST_FILES]

    def _walk(self, folder: Path, depth: int) -> Iterator[FoundFile]:
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda each: each.name)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"the folder {folder} cannot be read: {error.strerror}") from error
        for entry in entries:
            if entry.name.startswith(".") or entry.is_symlink():
                continue
            if entry.is_dir() and depth < MOST_DEPTH:
                yield from self._walk(Path(entry.path), depth + 1)
            elif entry.is_file() and entry.name.endswith(SUFFIXES):
                about = entry.stat()
                name = Path(entry.path).relative_to(self.root).as_posix()
                yield FoundFile(name, about.st_size, about.st_mtime)

    def place(self, path: str) -> Path:
        """The place of a file; refused if the name is not that of a workflow file in the folder."""
        parts = PurePosixPath(path).parts
        if (
            not parts
            or path.startswith("/")
            or "\\" in path
            or not path.isprintable()
            or len(path) > 300
            or len(parts) > MOST_DEPTH + 1
            or any(part.startswith(".") for part in parts)
        ):
            raise NotFoundError(f"{path[:300]!r} is not the name of a file in the folder of workflow files")
        if not path.endswith(SUFFIXES):
            raise NotFoundError(f"{path!r} is not a workflow file: its name ends in .json, .yaml or .yml")
        root = self.root.resolve()
        found = root.joinpath(*parts)
        try:
            inside = found.resolve().is_relative_to(root) and found.resolve() == found
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            raise NotFoundError(f"{path!r} leads out of the folder of workflow files")
        return found

    def read(self, path: str) -> FileText:
        """A file's text and version."""
        found = self.find(path)
        if found is None:
            raise NotFoundError(f"there is no file {path!r} in {self.root}")
        return found

    def find(self, path: str) -> FileText | None:
        """The same, or None if there is no such file."""
        data = _bytes(self.place(path))
        return None if data is None else FileText(_text(path, data), version_of(data))

    def save(self, path: str, text: str, over: str | None) -> str:
        """Save a file over a version of it, or as a new one; returns the version that it is now."""
        place = self.place(path)
        data = text.encode()
        if len(data) > MOST_TEXT:
            raise ConfigError(f"the text has {len(data):,} bytes, and {MOST_TEXT:,} is the most")
        with self._writing(path, new=path if over is None else None):
            check_version(path, _bytes(place), over)
            _replace(place, data)
        return version_of(data)

    def delete(self, path: str, over: str) -> None:
        """Delete this version of a file."""
        place = self.place(path)
        with self._writing(path):
            check_version(path, _bytes(place), over)
            place.unlink()

    def rename(self, path: str, to: str, over: str) -> None:
        """Give this version of a file another name, which no file has yet."""
        place, target = self.place(path), self.place(to)
        if place.suffix != target.suffix:
            raise ConfigError(f"{path} cannot become {to}: a file keeps its ending, {place.suffix}")
        check_version(path, _bytes(place), over)  # Before a folder is made.
        with self._writing(path, to, new=to):
            check_version(path, _bytes(place), over)
            check_version(to, _bytes(target), None)
            place.rename(target)

    @contextlib.contextmanager
    def _writing(self, *paths: str, new: str | None = None) -> Iterator[None]:
        """Lock the folders of these files, and make that of a new one; an error names the last file."""
        *_, last = paths
        try:
            with contextlib.ExitStack() as held:
                if new is not None:
                    self.place(new).parent.mkdir(parents=True, exist_ok=True)
                for folder in sorted({self.place(path).parent for path in paths}):
                    held.enter_context(_locked(folder))
                yield
        except FileNotFoundError as error:
            raise NotFoundError(f"there is no folder {PurePosixPath(last).parent} in {self.root}") from error
        except OSError as error:
            raise ConfigError(f"{last} cannot be written: {error.strerror}") from error


def version_of(data: bytes) -> str:
    """The version that a file's bytes are."""
    return blake2b(data, digest_size=16).hexdigest()


def check_version(path: str, before: bytes | None, over: str | None) -> None:
    """Refuse to save over any version but the one that was read."""
    if over is None and before is not None:
        raise VersionError(
            f"there is a file {path} already, and nothing was written: open it, or choose another name",
            version_of(before),
        )
    if over is not None and before is None:
        raise VersionError(f"{path} has been removed since you read it, and nothing was written: save it as a new file")
    if over is not None and before is not None and over != version_of(before):
        raise VersionError(
            f"{path} has been changed since you read it, and nothing was written: read the new text first",
            version_of(before),
        )


def _bytes(place: Path) -> bytes | None:
    try:
        opened = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{place.name} cannot be read: {error.strerror}") from error
    with open(opened, "rb") as file:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise ConfigError(f"{place.name} is not a file")
        data = file.read(MOST_TEXT + 1)
    if len(data) > MOST_TEXT:
        raise ConfigError(f"{place.name} has more than {MOST_TEXT:,} bytes: an editor does not open it")
    return data


def _text(path: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: an editor would lose some of it") from error


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other saves, also by other servers on this machine."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
        os.fsync(opened)
    finally:
        os.close(opened)


def _replace(place: Path, data: bytes) -> None:
    """Replace a file as a whole; it keeps its permissions."""
    temporary = place.with_name(f".{place.name}.{secrets.token_hex(6)}.tmp")
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode)
    except FileNotFoundError:
        mode = 0o644
    opened = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with open(opened, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(opened, mode)
            os.fsync(opened)
        os.replace(temporary, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
