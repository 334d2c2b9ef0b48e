"""A web page of the application, which the server shows beside the console."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")


class Page(msgspec.Struct, frozen=True):
    """Files at `/pages/NAME/` and Litestar handlers at `/pages/NAME/api/`, behind the server's authentication."""

    name: str
    title: str
    folder: Path
    handlers: Sequence[Any] = ()

    def check(self) -> Page:
        """Return the page if the server can show it; else raise a `ConfigError`."""
        if not _NAME.fullmatch(self.name):
            raise ConfigError(f"the page name {self.name!r} must be lower-case letters, digits and dashes")
        if not (self.folder / "index.html").is_file():
            raise ConfigError(f"the page {self.name} has no index.html in {self.folder}")
        return self
