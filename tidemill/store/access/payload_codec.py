"""The codec that `App(codec=)` names: how payloads lie in the database.

encrypt          AES-GCM with the keys of `key_ring`, the newest of which seals
compress         zlib, which hides nothing
module:name      a `PayloadCodec` of your own
"""

from __future__ import annotations

import importlib
import time
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tidemill.core.encoding.sealing import PayloadCodec
from tidemill.core.errors import ConfigError
from tidemill.store.access.key_ring import KeyRing, find_key_ring, key_place, require_key_ring

if TYPE_CHECKING:
    from tidemill.store.database import DatabaseSettings

#: The key id of what is compressed.
COMPRESSED = "zlib"
CHECK_EVERY = 1.0
_ABOUT = "a payload"


class Encryption:
    """Encrypts with the newest key. A file of keys that has changed is read again within a second."""

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings
        self._ring = require_key_ring(settings.secret_key_file, settings)
        self._version = self._file_version()
        self._check_at = 0.0

    @property
    def ring(self) -> KeyRing:
        """The keys as they are, or were a second ago; those that are known, if the file is gone or half written."""
        if (now := time.monotonic()) >= self._check_at:
            self._check_at = now + CHECK_EVERY
            if (version := self._file_version()) != self._version:
                with suppress(ConfigError):
                    self._read_again()
                    self._version = version
        return self._ring

    @property
    def newest(self) -> str:
        return self.ring.newest

    def seal(self, data: bytes) -> tuple[str, bytes]:
        return self.ring.seal(data, _ABOUT)

    def open(self, key_id: str, sealed: bytes) -> bytes:
        if key_id == COMPRESSED:
            return zlib.decompress(sealed)
        if key_id not in self._ring.keys:
            self._read_again()
        return self._ring.open(key_id, sealed, _ABOUT)

    def _read_again(self) -> None:
        self._ring = find_key_ring(self._settings.secret_key_file, self._settings) or self._ring

    def _file_version(self) -> tuple[int, int, int] | None:
        """What differs when the file has been written; None without a file."""
        try:
            found = key_place(self._settings.secret_key_file, self._settings).stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


class Compression:
    """Compresses; opens what was encrypted before, too, if there are keys."""

    newest = COMPRESSED

    def __init__(self, settings: DatabaseSettings) -> None:
        self._settings = settings

    def seal(self, data: bytes) -> tuple[str, bytes]:
        return COMPRESSED, zlib.compress(data, 1)

    def open(self, key_id: str, sealed: bytes) -> bytes:
        if key_id == COMPRESSED:
            return zlib.decompress(sealed)
        ring = find_key_ring(self._settings.secret_key_file, self._settings) or KeyRing({})
        return ring.open(key_id, sealed, _ABOUT)


def load_codec(settings: DatabaseSettings) -> PayloadCodec | None:
    """The codec of these settings; None if payloads are stored as they are."""
    if settings.codec is None:
        return None
    if settings.codec == "encrypt":
        return Encryption(settings)
    if settings.codec == "compress":
        return Compression(settings)
    module, colon, name = settings.codec.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"codec {settings.codec!r} cannot be loaded: {error}") from error
    if not (callable(getattr(found, "seal", None)) and callable(getattr(found, "open", None))):
        raise ConfigError(
            f"codec {settings.codec!r} is not encrypt, compress, or the module:name of an object with seal and open"
        )
    return found
