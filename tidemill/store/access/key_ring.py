"""The keys that seal credentials and payloads at rest. The first seals; each of them opens what it has sealed.

    TIDEMILL_SECRET_KEYS          keys in base64, the newest first: KEY or KEY,OLDER_KEY
    TIDEMILL_SECRET_KEY_FILE      a file with the same, one key on a line
    .tidemill/secret.key          is made beside the embedded PostgreSQL if neither is set

To rotate: add a new key on every host, then put it first, `tidemill credentials rotate` and `tidemill db reseal`, then
remove the old one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tidemill.core.errors import ConfigError

if TYPE_CHECKING:
    from tidemill.store.database import DatabaseSettings

KEYS = "TIDEMILL_SECRET_KEYS"
KEY_BYTES, NONCE_BYTES = 32, 12


class KeyRing(msgspec.Struct, frozen=True):
    """Keys by their ids, the newest first."""

    keys: Mapping[str, bytes]

    @property
    def newest(self) -> str:
        return next(iter(self.keys))

    def seal(self, data: bytes, about: str) -> tuple[str, bytes]:
        """Encrypt data with the newest key; it can be opened only as `about` the same. Returns the key's id too."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        nonce = secrets.token_bytes(NONCE_BYTES)
        return self.newest, nonce + AESGCM(self.keys[self.newest]).encrypt(nonce, data, about.encode())

    def open(self, key_id: str, sealed: bytes, about: str) -> bytes:
        """Decrypt data."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if key_id not in self.keys:
            raise ConfigError(
                f"{about} is sealed with key {key_id}, which is not among the keys here: add it to {KEYS}"
            )
        try:
            return AESGCM(self.keys[key_id]).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about.encode())
        except InvalidTag:
            raise ConfigError(f"{about} cannot be opened: it was changed, or moved here from something else") from None


def new_key() -> str:
    """A new key, as it is written."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def read_keys(text: str, origin: str) -> KeyRing:
    """The keys of a text; an error names no key."""
    found: dict[str, bytes] = {}
    for at, word in enumerate(filter(None, re.split(r"[\s,]+", text)), 1):
        try:
            key = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise ConfigError(
                f"{origin}: key {at} is not {KEY_BYTES} bytes in base64; `tidemill credentials key` makes one"
            )
        found[hashlib.sha256(key).hexdigest()[:8]] = key
    if not found:
        raise ConfigError(f"{origin} holds no key; `tidemill credentials key` makes one")
    return KeyRing(found)


def key_place(key_file: str | None, database: DatabaseSettings) -> Path:
    """The file of the keys for a database, unless the environment has them."""
    return Path(key_file) if key_file else Path(database.directory) / "secret.key"


def find_key_ring(key_file: str | None, database: DatabaseSettings) -> KeyRing | None:
    """The keys for a database: of the environment, the named file, or its directory; None if there are none."""
    if text := os.environ.get(KEYS):
        return read_keys(text, KEYS)
    place = key_place(key_file, database)
    try:
        return read_keys(place.read_text(), str(place))
    except FileNotFoundError:
        if key_file:
            raise ConfigError(f"the key file {place} does not exist: `tidemill credentials key > {place}`") from None
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the key file {place} cannot be read: {error}") from error


def require_key_ring(key_file: str | None, database: DatabaseSettings) -> KeyRing:
    """The keys for a database; beside an embedded one, a key is made if there is none."""
    found = find_key_ring(key_file, database)
    if found is not None:
        return found
    if database.url is not None:
        raise ConfigError(
            f"there is no key to seal secrets with: set {KEYS} or TIDEMILL_SECRET_KEY_FILE on every host; "
            "`tidemill credentials key` makes one"
        )
    place = key_place(key_file, database)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{new_key()}\n")
    except FileExistsError:
        pass  # Another process has just made the key.
    return read_keys(place.read_text(), str(place))
