"""Pages: a cursor says where the last one ended. It is opaque, so that what it holds may change."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from litestar.params import Parameter

from tidemill.core.errors import ConfigError

MOST = 200

Limit = Annotated[int, Parameter(ge=1, le=MOST, description="How many to show on a page.")]
Cursor = Annotated[
    str | None, Parameter(max_length=64, description="Where the page begins: `next` of the page before.")
]
Number = Annotated[int, Parameter(ge=1, le=2**63 - 1)]


def write_cursor(last: int) -> str:
    """The cursor after the object with this id."""
    return base64.urlsafe_b64encode(f"id:{last}".encode()).decode().rstrip("=")


def read_cursor(text: str | None) -> int | None:
    """The id that a cursor stands for."""
    if text is None:
        return None
    try:
        kind, _, number = base64.urlsafe_b64decode(text.encode() + b"==").decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{text!r} is not a cursor: use `next` of the page before, as it is") from error
    if kind != "id" or not number.isascii() or not number.isdigit() or not 0 < int(number) < 2**63:
        raise ConfigError(f"{text!r} is not a cursor: use `next` of the page before, as it is")
    return int(number)


def following(ids: list[int], limit: int) -> str | None:
    """The cursor of the next page, if this one was full."""
    return write_cursor(ids[-1]) if len(ids) == limit else None
