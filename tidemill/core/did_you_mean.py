"""Suggest the known name that a misspelt one was probably meant to be."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from itertools import islice

_MOST_NAMES = 2000


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return `; did you mean 'delay'?` for the closest known name, or nothing if none is close."""
    close = difflib.get_close_matches(str(name), list(islice(known, _MOST_NAMES)), 1)
    return f"; did you mean {close[0]!r}?" if close else ""
