"""What a place for states must be able to do, and what travels in and out of it.

There are three: files (`FileStates`, the default), an object store (`ObjectStates`) and the database itself
(`DatabaseStates`). A *signature* is a number that changes when the content may have changed; it is cheap to get.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidemill.core.errors import TidemillError
from tidemill.pipelines.definition.pattern import Pattern

#: What is written: all of it, or piece by piece.
Content = bytes | Iterable[bytes]


class StateStoreError(TidemillError):
    """The place for states refuses: it is full, read-only, or away. Not the fault of a stage's code."""


class ContentError(Exception):
    """What was to be written piece by piece has failed in the middle: the fault of whoever gives the pieces."""


class Survey(msgspec.Struct):
    """What was found: every matching path with its signature, by pattern, and what could not be looked at.

    `racy` are files that were changed just now, and might be again without their signature telling; `folders` are
    those that were looked into, with the time of their last change, 0 if they are not there; `blind` are the
    beginnings of paths that could not be looked at.
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
    """A file that is there and cannot be read."""

    why: str


class StateDraft(msgspec.Struct):
    """Content on its way to a path. `needs` are signatures of other paths that must still be so when it gets there."""

    path: str
    content: Content
    needs: dict[str, int]
    entity: str = ""
    before: int | None = None  # the signature of what it replaces


class Prepared(msgspec.Struct):
    """Content that is stored under a name that nobody looks at, and has to be put in place only."""

    path: str
    content: str
    size: int
    needs: dict[str, int]
    entity: str = ""
    before: int | None = None
    held: Any = None  # the store's own: a hidden file's name, or the bytes; None if it is in place already
    error: str | None = None  # why the content could not be had; nothing is held then


def prepared(draft: StateDraft, content: str, size: int, held: Any) -> Prepared:
    """A draft that is stored."""
    return Prepared(draft.path, content, size, draft.needs, draft.entity, draft.before, held)


def failed(draft: StateDraft, error: ContentError) -> Prepared:
    """A draft whose content could not be had."""
    return Prepared(draft.path, "", 0, draft.needs, draft.entity, draft.before, error=str(error))


class States(Protocol):
    """A place for states."""

    async def survey(self, patterns: Sequence[Pattern]) -> Survey:
        """All paths that match any of the patterns."""
        ...

    async def look(self, paths: Iterable[str]) -> dict[str, int | None]:
        """The signatures of these paths; None for what is not there."""
        ...

    async def contents(self, paths: Sequence[str]) -> dict[str, SeenFile | Unreadable | None]:
        """What these paths hold; None for what is not there, or changes while it is read."""
        ...

    async def read(self, path: str) -> bytes: ...

    def stream(self, path: str) -> AsyncIterator[bytes]:
        """The content piece by piece."""
        ...

    async def prepare(self, drafts: Sequence[StateDraft]) -> list[Prepared]:
        """Store contents durably, where nobody sees them yet. One that fails by itself has an `error`."""
        ...

    async def publish(self, ready: Sequence[Prepared]) -> dict[str, int]:
        """Put contents in place, each at once and as a whole; returns the signatures of those that were."""
        ...

    async def discard(self, unwanted: Sequence[Prepared]) -> None: ...

    async def remove(self, paths: Sequence[str]) -> None: ...

    async def archive(self, paths: Sequence[str]) -> None:
        """Move paths out of the way, to where they can be found."""
        ...

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        """Change entries of a directory's manifest; None takes one out."""
        ...

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]: ...

    async def sweep(self, folders: Iterable[str]) -> None:
        """Remove what builders left behind in these folders that died before they put it in place."""
        ...


class Readable(Protocol):
    """A place whose states a function can read by itself, in whatever thread it runs."""

    def read_now(self, path: str) -> bytes: ...

    def pieces_now(self, path: str) -> Iterator[bytes]:
        """The content piece by piece."""
        ...

    def place(self, path: str) -> Path | None:
        """Where a path is on this machine, if it is a file."""
        ...


class ManifestEntry(msgspec.Struct, rename="camel", omit_defaults=True):
    """What a manifest says of a state. `inputs` names what it was built from, shortly."""

    code_hash: str
    content_hash: str
    produced_at: str = ""
    produced_by: str = ""
    inputs: str = ""


class Manifest(msgspec.Struct):
    """`.manifest.json`, as it lies beside the states that it tells of."""

    states: dict[str, ManifestEntry] = {}


MANIFEST = ".manifest.json"


def manifest_path(directory: str) -> str:
    return f"{directory}/{MANIFEST}" if directory else MANIFEST


def hash_content(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()


def hash_pieces(content: Iterable[bytes], found: dict[str, Any]) -> Iterator[bytes]:
    """The pieces of a content as they come; at the end, `found` has their hash and size.

    Whatever goes wrong in giving them is a `ContentError`: it must not be taken for trouble with the store.
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
        digest.update(piece)
        size += len(piece)
        yield piece
    found["content"], found["size"] = digest.hexdigest(), size
