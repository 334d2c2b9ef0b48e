"""Payloads at rest: sealed values within JSON, text and bytes, and how they are opened. Pure.

A sealed JSON value is `{"$sealed": "KEY.BASE64"}`, a sealed text is `$sealed:KEY.BASE64`, sealed bytes begin with
`$sealed:KEY.`. Each names the key that opens it, so rows of different keys, and rows that are not sealed, lie side by
side. Statements may copy a sealed value into other JSON or text: it is found wherever it stands.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Collection
from typing import Protocol

import msgspec

SEALED = "$sealed"
_MARK = b"$sealed"
_PREFIX = b"$sealed:"

#: What says nothing about anything, and stays as it is.
_EMPTY = frozenset({b"{}", b"[]", b"null", b"true", b"false", b'""'})

_IN_JSON = re.compile(
    rb'\{\s*"\$sealed"\s*:\s*"([\w-]{1,64})\.([A-Za-z0-9+/=]+)"\s*\}|\$sealed:([\w-]{1,64})\.([A-Za-z0-9+/=]+)'
)
_IN_TEXT = re.compile(r"\$sealed:([\w-]{1,64})\.([A-Za-z0-9+/=]+)", re.ASCII)
_IN_BYTES = re.compile(rb"\$sealed:([\w-]{1,64})\.")


class PayloadCodec(Protocol):
    """Encrypts or compresses payloads: what `App(codec=)` names. Called from any thread."""

    def seal(self, data: bytes, /) -> tuple[str, bytes]:
        """The sealed data, and the id of the key that opens it: letters, digits, `-` and `_`."""
        ...

    def open(self, key_id: str, sealed: bytes, /) -> bytes:
        """The data again; an error if there is no such key."""
        ...


_hides = False


def hide_in_logs(hides: bool) -> None:
    """Say whether this process keeps the texts of errors, which may hold payloads, out of its own log."""
    global _hides
    _hides = hides


def loggable(text: str | None) -> str | None:
    """The text of an error of users' code for the log of this process."""
    return "sealed: `tidemill explain` shows it" if _hides and text is not None else text


def seal_json(codec: PayloadCodec, data: bytes) -> bytes:
    """A JSON value, sealed."""
    if data in _EMPTY:
        return data
    key_id, sealed = codec.seal(data)
    return b'{"%b":"%b.%b"}' % (_MARK, key_id.encode(), b64encode(sealed))


def seal_members(codec: PayloadCodec, data: bytes, names: Collection[str]) -> bytes:
    """A JSON object of which these members are sealed; the order of members stays as it is."""
    members = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    for name in names:
        value = members.get(name)
        if value is not None:
            raw = bytes(value)
            sealed = seal_string(codec, raw) if raw[:1] == b'"' else seal_json(codec, raw)
            members[name] = msgspec.Raw(sealed)
    return msgspec.json.encode(members)


def seal_string(codec: PayloadCodec, data: bytes) -> bytes:
    """A JSON string, sealed; it remains a string."""
    return msgspec.json.encode(seal_text(codec, msgspec.json.decode(data, type=str)))


def seal_text(codec: PayloadCodec, text: str) -> str:
    """A text, sealed."""
    if not text:
        return text
    key_id, sealed = codec.seal(text.encode("utf-8", "surrogatepass"))
    return f"{SEALED}:{key_id}.{b64encode(sealed).decode()}"


def seal_bytes(codec: PayloadCodec, data: bytes) -> bytes:
    """Bytes, sealed."""
    if not data:
        return data
    key_id, sealed = codec.seal(data)
    return b"%b%b.%b" % (_PREFIX, key_id.encode(), sealed)


def open_json(codec: PayloadCodec, data: bytes) -> bytes:
    """JSON with every sealed value in it opened."""
    if _MARK not in data:
        return data

    def opened(found: re.Match[bytes]) -> bytes:
        if found[1] is not None:
            return codec.open(found[1].decode(), b64decode(found[2]))
        text = codec.open(found[3].decode(), b64decode(found[4])).decode("utf-8", "surrogatepass")
        return msgspec.json.encode(text)[1:-1]

    return _IN_JSON.sub(opened, data)


def open_text(codec: PayloadCodec, text: str) -> str:
    """Text with everything sealed in it opened."""
    if SEALED not in text:
        return text
    return _IN_TEXT.sub(lambda found: codec.open(found[1], b64decode(found[2])).decode("utf-8", "surrogatepass"), text)


def open_bytes(codec: PayloadCodec, data: bytes) -> bytes:
    """Bytes, opened if they are sealed."""
    if not data.startswith(_PREFIX) or (found := _IN_BYTES.match(data)) is None:
        return data
    return codec.open(found[1].decode(), data[found.end() :])


def reseal(codec: PayloadCodec, newest: str, data: bytes) -> bytes:
    """JSON, text or bytes in which what other keys have sealed is sealed with the newest one."""

    def again(found: re.Match[bytes]) -> bytes:
        key_id, sealed = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
        if key_id.decode() == newest:
            return found[0]
        name, now = codec.seal(codec.open(key_id.decode(), b64decode(sealed)))
        token = b"%b.%b" % (name.encode(), b64encode(now))
        return b'{"%b":"%b"}' % (_MARK, token) if found[1] is not None else _PREFIX + token

    if data.startswith(_PREFIX) and (whole := _IN_BYTES.match(data)) and not _IN_JSON.fullmatch(data):
        return data if whole[1].decode() == newest else seal_bytes(codec, open_bytes(codec, data))
    return _IN_JSON.sub(again, data)
