"""Text from outside, such as names and error messages, in a form that a terminal shows and does not obey."""

from __future__ import annotations

#: Control characters (the escape of a terminal among them), and what changes the direction or the line of a text.
_HIDDEN = [*range(0x20), *range(0x7F, 0xA0), *range(0x2028, 0x202F), *range(0x2066, 0x206A)]
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _HIDDEN}
_ESCAPES |= {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
_IN_LINES = {code: escape for code, escape in _ESCAPES.items() if code not in (0x09, 0x0A)}
_IN_JSON = {code: f"\\u{code:04x}" for code in _HIDDEN if code >= 0x7F}


def printable(text: str) -> str:
    """A text of one or more lines: what a terminal would obey is escaped."""
    return text if text.isprintable() else text.translate(_IN_LINES)


def on_one_line(text: str) -> str:
    """A name, or another text that must not begin a line of its own."""
    return text if text.isprintable() else text.translate(_ESCAPES)


def printable_json(document: str) -> str:
    """A JSON document that stays the same document: JSON itself escapes only some of these characters."""
    return document if document.isascii() and "\x7f" not in document else document.translate(_IN_JSON)
