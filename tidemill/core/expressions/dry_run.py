"""What a dry run shows of a field of a node, for all shapes of work."""

from __future__ import annotations

from typing import Any

import msgspec


class Field(msgspec.Struct, frozen=True, omit_defaults=True):
    """A field of a node in a dry run: its value, why it is not known before the run, or what is wrong with it."""

    name: str
    value: Any = None
    waits: str | None = None
    wrong: str | None = None
