"""The interface of state stores, and the data that they exchange.

There are three: files (`FileStates`, the default), an object store (`ObjectStates`) and the database itself
(`DatabaseStates`). A *signature* is a number that changes when the content may have changed; it is cheap to read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidemill.core.errors import TidemillError
from tidemill.pipelines.definition.pattern import Pattern

#: Content to write: as a whole, or in chunks.
Content = bytes | Iterable[bytes]


class StateStoreError(TidemillError):
    """The state store fails: it is full, read-only or unavailable. Not an error of a stage's code."""


#: The builders among these that are alive; a builder is known by the name that is part of its hidden names.
Alive = Callable[[Iterable[str]], Awaitable[set[str]]]

#: The builder in hidden names of a writer that is none; what it leaves behind is deleted when it is old.
NO_BUILDER = "x"
FORGOTTEN_AFTER = 3600.0


class ContentError(Exception):
    """Content that is written in chunks has failed in the middle: an error of the code that yields them."""


class Scan(msgspec.Struct):
    """The result of a scan: every matching path with its signature, by pattern, and errors.

    `racy` are files that were changed just now, and may change again with the same signature; `folders` are the scanned
    ones with the time of their last change, 0 if missing; `blind` are path prefixes that could not be scanned.
    """

    signatures: dict[str, int]
    matched: dict[Pattern, dict[str, None]]
    problems: list[str]
    racy: set[str]
    folders: dict[str, int] = {}
    blind: list[str] = []


class SeenFile(msgspec.Struct):
    """A file that was read: its content's hash, its size, and the signature it was read under."""

    content: str
    size: int
    signature: int


class Unreadable(msgspec.Struct):
    """A file that exists but cannot be read."""

    why: str


class StateDraft(msgspec.Struct):
    """Content to be written to a path. `needs` are signatures of other paths that must still match then."""

    path: str
    content: Content
    needs: dict[str, int]
    entity: str = ""
    before: int | None = None  # the signature of what it replaces

    def prepared(self, content: str, size: int, held: Any) -> Prepared:
        """The result if it is stored."""
        return Prepared(self.path, content, size, self.needs, self.entity, self.before, held)

    def failed(self, error: ContentError | StateStoreError) -> Prepared:
        """The result if its content failed, or cannot be stored."""
        return Prepared(self.path, "", 0, self.needs, self.entity, self.before, error=str(error))


class Prepared(msgspec.Struct):
    """Content that is stored under a hidden name, ready to be published."""

    path: str
    content: str
    size: int
    needs: dict[str, int]
    entity: str = ""
    before: int | None = None
    held: Any = None  # private to the store: a hidden file's name, or the bytes; None if already published
    error: str | None = None  # why it failed, or cannot be put in place; nothing is stored then


class NotHereError(StateStoreError):
    """This host does not see the states of a pipeline."""


class States(Protocol):
    """A state store. `builder` is part of the hidden names that it gives, so that its leftovers can be recognized."""

    builder: str

    async def identify(self) -> str:
        """The id of this place, the same on each host that sees it; created if there is none yet."""
        ...

    async def check_identity(self, id: str) -> None:
        """Raise `NotHereError` unless this host sees the place with this id."""
        ...

    async def scan(self, patterns: Sequence[Pattern]) -> Scan:
        """All paths that match any of the patterns."""
        ...

    async def read_signatures(self, paths: Iterable[str]) -> dict[str, int | None]:
        """The signatures of these paths; None for missing ones."""
        ...

    async def contents(self, paths: Sequence[str]) -> dict[str, SeenFile | Unreadable | None]:
        """The contents of these paths; None for missing ones, and those that change while they are read."""
        ...

    async def read(self, path: str) -> bytes: ...

    def stream(self, path: str) -> AsyncIterator[bytes]:
        """The content in chunks."""
        ...

    async def prepare(self, drafts: Sequence[StateDraft]) -> list[Prepared]:
        """Store contents durably under hidden names; one that fails or cannot be stored gets an `error`."""
        ...

    async def publish(self, ready: Sequence[Prepared]) -> dict[str, int]:
        """Publish contents, each atomically; returns the signatures of those that were published.

        One that cannot be put in place gets an `error`; one whose needs have changed is left out without.
        """
        ...

    async def discard(self, unwanted: Sequence[Prepared]) -> None: ...

    async def remove(self, paths: Sequence[str]) -> None: ...

    async def archive(self, paths: Sequence[str]) -> None:
        """Move paths to an archive folder."""
        ...

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        """Change entries of a directory's manifest; None removes one."""
        ...

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]: ...

    async def sweep(self, folders: Iterable[str], alive: Alive) -> None:
        """Delete unpublished contents of dead builders in these folders."""
        ...


class Readable(Protocol):
    """A store whose states can be read synchronously in any thread."""

    def read_now(self, path: str) -> bytes: ...

    def pieces_now(self, path: str) -> Iterator[bytes]:
        """The content in chunks."""
        ...

    def place(self, path: str) -> Path | None:
        """The path on this machine, if it is a file."""
        ...


class ManifestEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """A state's entry in a manifest. `inputs` is a short hash of its inputs."""

    code_hash: str
    content_hash: str
    produced_at: str = ""
    produced_by: str = ""
    inputs: str = ""


class Manifest(msgspec.Struct):
    """`.manifest.json`, in the directory of its states."""

    states: dict[str, ManifestEntry] = {}


MANIFEST = ".manifest.json"


def manifest_path(directory: str) -> str:
    return f"{directory}/{MANIFEST}" if directory else MANIFEST


def hash_content(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def hash_pieces(content: Iterable[bytes], found: dict[str, Any]) -> Iterator[bytes]:
    """Pass chunks through; at the end, `found` has their hash and size.

    Any error of the iterable becomes a `ContentError`, so that it is not mistaken for an error of the store.
    """
    digest, size = blake2b(digest_size=16), 0
    pieces = iter(content)
    while True:
        try:
            piece = next(pieces, None)
        except Exception as error:
            raise ContentError(f"{type(error).__name__}: {error}") from error
        if piece is None:
            break
        if not isinstance(piece, bytes | bytearray | memoryview):
            raise ContentError(f"TypeError: it yields a {type(piece).__name__}, and must yield text or bytes")
        digest.update(piece)
        size += len(piece)
        yield piece
    found["content"], found["size"] = digest.hexdigest(), size
