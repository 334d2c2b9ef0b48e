"""Encode and decode the exception of a step: the qualified name of its class, and its message.

Decoding never imports a module. An exception whose class is unknown in this process, or that cannot be created from its
message alone, is decoded as an `UnreconstructedException` with the class name.
"""

from __future__ import annotations

import sys
from typing import Any

from tidemill.core.codec import storable
from tidemill.core.errors import PayloadError, words_of


class UnreconstructedException(Exception):
    """Replaces an exception that could not be recreated from its stored form."""

    def __init__(self, message: str, *, original_type: str | None = None) -> None:
        super().__init__(message)
        self.original_type = original_type


def exception_document(error: BaseException) -> dict[str, str]:
    """Return an exception as plain JSON values."""
    cls = type(error)
    is_key = isinstance(error, KeyError) and len(error.args) == 1 and isinstance(error.args[0], str)
    message = storable(error.args[0] if is_key else words_of(error))
    return {"exception_type": f"{cls.__module__}.{cls.__qualname__}", "exception_message": message}


def exception_from(document: Any) -> Exception:
    """Recreate an exception from its document, or return an `UnreconstructedException`."""
    if isinstance(document, Exception):
        return document
    try:
        name, message = document["exception_type"], document["exception_message"]
    except (TypeError, KeyError) as error:
        raise PayloadError(f"this is not a stored exception: {document!r}") from error
    cls = _loaded_class(name)
    if cls is None:
        return UnreconstructedException(message, original_type=name)
    try:
        return cls(message)
    except Exception:  # noqa: BLE001 -- the constructor may raise any exception, but the message must be kept
        return UnreconstructedException(message, original_type=name)


def _loaded_class(name: str) -> type[Exception] | None:
    module_name, _, attribute = name.rpartition(".")
    found: Any = sys.modules.get(module_name)
    if found is None or not isinstance(candidate := getattr(found, attribute, None), type):
        return None
    return candidate if issubclass(candidate, Exception) else None
