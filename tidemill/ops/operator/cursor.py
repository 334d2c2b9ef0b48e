"""A cursor says where the last page of a list ended. It is opaque, so that what it holds may change."""

from __future__ import annotations

import base64
import binascii
from datetime import datetime
from typing import TypeVar

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.store.jobs.pages import Written

T = TypeVar("T")


def write_cursor(last: int) -> str:
    """The cursor after the object with this id."""
    return _write("id", str(last))


def read_cursor(text: str | None) -> int | None:
    """The id that a cursor stands for."""
    if text is None:
        return None
    number = _read("id", text)
    if not number.isascii() or not number.isdigit() or not 0 < int(number) < 2**63:
        raise _refusal(text)
    return int(number)


def following(ids: list[int], limit: int) -> str | None:
    """The cursor of the next page, if this one was full."""
    return write_cursor(ids[-1]) if len(ids) == limit else None


def page_json(page: Written, limit: int) -> bytes:
    """A page that the database wrote, with the cursor of the next one."""
    after = f'"{write_cursor(page.last)}"' if page.count == limit else "null"
    return b'{"items":%b,"next":%b}' % (page.items, after.encode())


def write_row_cursor(entity: str) -> str:
    """The cursor after a row that is known by its name."""
    return _write("row", entity)


def read_row_cursor(text: str | None) -> str | None:
    """The name that a cursor stands for."""
    return None if text is None else _read("row", text)


def write_moment_cursor(at: datetime, *place: int | str) -> str:
    """The cursor after something that is known by a moment, and by more where several have the same."""
    return _write("at", msgspec.json.encode((at, *place)).decode())


def read_moment_cursor(text: str | None, kind: type[T]) -> T | None:
    """What a cursor stands for: a tuple of this kind."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(_read("at", text), type=kind)
    except msgspec.MsgspecError as error:
        raise _refusal(text) from error


def _write(kind: str, place: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}:{place}".encode()).decode().rstrip("=")


def _read(kind: str, text: str) -> str:
    try:
        found, _, place = base64.urlsafe_b64decode(text.encode() + b"==").decode().partition(":")
    except (binascii.Error, ValueError) as error:
        raise _refusal(text) from error
    if found != kind:
        raise _refusal(text)
    return place


def _refusal(text: str) -> ConfigError:
    return ConfigError(f"{text[:80]!r} is not a cursor: use `next` of the previous page, unchanged")
