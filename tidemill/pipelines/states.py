"""What a place for states must be able to do, and what travels in and out of it.

There are three: files (`FileStates`, the default), an object store (`ObjectStates`) and the database itself
(`DatabaseStates`). A *signature* is a number that changes when the content may have changed; it is cheap to get.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import msgspec

from tidemill.core.errors import TidemillError
from tidemill.pipelines.pattern import Pattern

#: What a function may give as content: text, bytes, or bytes piece by piece.
Content = str | bytes | Iterable[bytes]


class StoreTrouble(TidemillError):
    """The place for states refuses: it is full, read-only, or away. Not the fault of a stage's code."""


class Survey(msgspec.Struct):
    """What was found: every matching path with its signature, by pattern, and what could not be looked at.

    `racy` are files that were changed just now, and might be again without their signature telling; `folders` are
    those that were listed, with the time of their last change.
    """

    signatures: dict[str, int]
    matched: dict[Pattern, dict[str, None]]
    problems: list[str]
    racy: set[str]
    folders: dict[str, int] = {}


class Seen(msgspec.Struct):
    """A file that was read: its content's hash, its size, and the signature it was read under."""

    content: str
    size: int
    signature: int


class Draft(msgspec.Struct):
    """Content on its way to a path. `needs` are signatures of other paths that must still be so when it gets there."""

    path: str
    content: Any
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
    held: Any = None  # the store's own: a temporary file's name, or the bytes


class States(Protocol):
    """A place for states."""

    async def survey(self, patterns: Sequence[Pattern]) -> Survey:
        """All paths that match any of the patterns."""
        ...

    async def look(self, paths: Iterable[str]) -> dict[str, int | None]:
        """The signatures of these paths; None for what is not there."""
        ...

    async def contents(self, paths: Sequence[str]) -> dict[str, Seen | None]:
        """What these paths hold; None for what is not there, or changes while it is read."""
        ...

    async def read(self, path: str) -> bytes: ...

    def stream(self, path: str) -> AsyncIterator[bytes]:
        """The content piece by piece."""
        ...

    async def prepare(self, drafts: Sequence[Draft]) -> list[Prepared]:
        """Store contents durably, where nobody sees them yet."""
        ...

    async def publish(self, prepared: Sequence[Prepared]) -> dict[str, int]:
        """Put contents in place, each at once and as a whole; returns the signatures of those that were."""
        ...

    async def discard(self, prepared: Sequence[Prepared]) -> None: ...

    async def remove(self, paths: Sequence[str]) -> None: ...

    async def archive(self, paths: Sequence[str]) -> None:
        """Move paths out of the way, to where they can be found."""
        ...

    async def keep_manifest(self, directory: str, entries: Mapping[str, ManifestEntry | None]) -> None:
        """Change entries of a directory's manifest; None takes one out."""
        ...

    async def manifest(self, directory: str) -> dict[str, ManifestEntry]: ...


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


def hash_content(content: bytes) -> str:
    return blake2b(content, digest_size=16).hexdigest()
