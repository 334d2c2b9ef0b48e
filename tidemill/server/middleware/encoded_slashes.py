"""Names with slashes in the path of a request: `%2F` is a part of a name, and not the end of one.

ASGI servers decode the path before it is split into its parts. So the router gets the path with a mark in place of each
encoded slash; what it finds in the path gets its slashes back before a handler sees it.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

#: Half of a surrogate pair: no text in UTF-8 contains it.
_MARK = "\udc2f"
_ENCODED = re.compile(rb"%2f", re.IGNORECASE)


def mark_slashes(inner: Any) -> Any:
    """An ASGI application around another, which gets paths with marks."""

    async def call(scope: Any, receive: Any, send: Any) -> None:
        raw: bytes = scope.get("raw_path") or b""
        if raw.startswith(b"/api/") and _ENCODED.search(raw):
            path = _MARK.join(unquote(part.decode("latin-1")) for part in _ENCODED.split(raw))
            scope = {**scope, "path": path}
        await inner(scope, receive, send)

    return call


def restore_slashes(scope: Any) -> None:
    """Put the slashes back into what was found in the path."""
    if _MARK in scope["path"]:
        found = scope["path_params"]
        scope["path_params"] = {name: _restored(value) for name, value in found.items()}


def _restored(value: Any) -> Any:
    return value.replace(_MARK, "/") if isinstance(value, str) else value
