"""The content of a state, shown safely: the beginning of text, small pictures, and of anything else only its size."""

from __future__ import annotations

import base64
from contextlib import aclosing
from datetime import datetime
from difflib import unified_diff
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tidemill.core.errors import NotFoundError
from tidemill.pipelines.stores.files import FileStates
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.store.database import Database
from tidemill.store.states.contents import list_contents

MOST_TEXT = 64 * 1024
MOST_PICTURE = 512 * 1024

#: What a picture begins with. No SVG: it may hold script.
_PICTURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)


class Content(msgspec.Struct, frozen=True):
    """The content of a file; that of bytes is not returned."""

    path: str
    size: int
    kind: Annotated[str, Meta(description="text, picture or bytes.")]
    media_type: str
    text: str | None = None
    data: Annotated[str | None, Meta(description="A picture in base64.")] = None
    truncated: Annotated[bool, Meta(description="Whether this is only its beginning.")] = False


class EarlierContent(msgspec.Struct, frozen=True):
    """What a state held until a build replaced it."""

    hash: str
    replaced_at: datetime
    size: int
    text: Annotated[str | None, Meta(description="Null if it is not text.")]
    changes: Annotated[list[str], Meta(description="The lines that the build changed, marked with - and +.")]


async def preview(snapshot: PipelineSnapshot, path: str) -> Content:
    """The content of an input or an output of a pipeline; of nothing else."""
    patterns = snapshot.pipeline_view.patterns
    fact = snapshot.pipeline_view.world.files.get(path)
    if fact is None or all(pattern.values(path) is None for pattern in patterns):
        raise NotFoundError(
            f"pipeline {snapshot.pipeline.name} has no file {path[:200]!r}: it was removed, or never existed"
        )
    if _leads_outside(snapshot.pipeline_view.states, path):
        raise NotFoundError(f"{path!r} is a link to a file outside of the pipeline's folder, which is not shown")
    begun = await _beginning(snapshot, path, MOST_PICTURE + 1)
    if begun is None:
        raise NotFoundError(f"{path!r} was removed a moment ago")
    kind = next((name for start, name in _PICTURES if begun.startswith(start)), None)
    if kind is None and begun.startswith(b"RIFF") and begun[8:12] == b"WEBP":
        kind = "image/webp"
    size = max(fact.size, len(begun))
    if kind is not None:
        if len(begun) > MOST_PICTURE:
            return Content(path, size, "bytes", kind, truncated=True)
        return Content(path, size, "picture", kind, data=base64.b64encode(begun).decode())
    text = _text(begun[:MOST_TEXT], cut=len(begun) > MOST_TEXT)
    if text is None:
        return Content(path, size, "bytes", "application/octet-stream")
    return Content(path, size, "text", "text/plain", text=text, truncated=len(begun) > MOST_TEXT)


async def earlier_contents(database: Database, snapshot: PipelineSnapshot, path: str) -> list[EarlierContent]:
    """What an output held before its last builds, newest first; none of anything else."""
    rows = await list_contents(database, snapshot.pipeline.name, path)
    there = bool(rows) and path in snapshot.pipeline_view.world.files
    after = await _beginning(snapshot, path, MOST_TEXT) if there else None
    found: list[EarlierContent] = []
    for row in rows:
        text, next_text = _text(row["content"], cut=False), None if after is None else _text(after, cut=False)
        lines: list[str] = []
        if text is not None and next_text is not None:
            before_lines, after_lines = text.splitlines(), next_text.splitlines()
            lines = list(unified_diff(before_lines, after_lines, lineterm="", n=2))[2:]
        found.append(EarlierContent(row["hash"], row["replaced_at"], len(row["content"]), text, lines))
        after = row["content"]
    return found


def _leads_outside(states: object, path: str) -> bool:
    """Whether a path of a folder leads out of it by symbolic links: a build may read such a file, a browser may not."""
    if not isinstance(states, FileStates):
        return False
    return not states.place(path).resolve().is_relative_to(states.root.resolve())


async def _beginning(snapshot: PipelineSnapshot, path: str, most: int) -> bytes | None:
    found = bytearray()
    stream: Any = snapshot.pipeline_view.states.stream(path)
    try:
        async with aclosing(stream):
            async for piece in stream:
                found += piece
                if len(found) >= most:
                    break
    except (FileNotFoundError, NotFoundError, KeyError):
        return None
    return bytes(found[:most])


def _text(data: bytes, *, cut: bool) -> str | None:
    """Data as text, if that is what it is; a character that was cut in two at the end is left out."""
    if b"\x00" in data:
        return None
    for less in range(4 if cut else 1):
        try:
            return data[: len(data) - less].decode()
        except UnicodeDecodeError as error:
            if error.start < len(data) - 4:
                return None
    return None
