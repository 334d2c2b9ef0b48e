"""Decodes the bytes of a message to its value, as its source declares."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError


def decoder_for(declared: Any, where: str) -> Callable[[bytes], Any] | None:
    """The function that decodes payloads; None if they stay bytes."""
    if declared is bytes:
        return None
    if declared is None or declared is Any:
        return msgspec.json.Decoder().decode
    if inspect.isfunction(declared) or inspect.ismethod(declared) or inspect.isbuiltin(declared):
        return declared
    if isinstance(declared, type) and hasattr(declared, "model_validate"):
        return lambda payload: decode(payload, declared)
    try:
        return msgspec.json.Decoder(declared).decode
    except TypeError as error:
        if not callable(declared):
            raise ConfigError(f"{where}: {declared!r} is neither a type nor a function of bytes") from error
    return declared
