"""Names with a slash in an address: `/schedules/workflow%2Fhook/pause` is about the schedule `workflow/hook`.

ASGI servers decode a path as a whole, and a router would find one part too many in it.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Any
from urllib.parse import unquote

#: Stands for a slash within a part of a path while the route is looked up: it is no character, so no name has it.
SLASH = "\uffff"


class EncodedSlashes:
    """An ASGI application around the router, which sees each encoded slash as part of a name."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and b"%2f" in scope["raw_path"].lower():
            parts = scope["raw_path"].decode("latin-1").split("/")
            scope = {**scope, "path": "/".join(unquote(part).replace("/", SLASH) for part in parts)}
        await self._inner(scope, receive, send)


def restore_slashes(scope: Any) -> None:
    """Give the parameters of the route their slashes back."""
    if SLASH in scope["path"]:
        scope["path"] = scope["path"].replace(SLASH, "/")
        scope["path_params"] = {name: _restored(value) for name, value in scope["path_params"].items()}


def _restored(value: Any) -> Any:
    if isinstance(value, str | PurePath):
        return type(value)(str(value).replace(SLASH, "/"))
    return value
