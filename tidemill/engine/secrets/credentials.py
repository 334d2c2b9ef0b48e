"""Credentials: named secrets for nodes of workflow files, sealed at rest, opened where they are used.

A process says once where credentials are (`credentials_from`); nodes then read them by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from tidemill.core.codec import decode, encode
from tidemill.store.access.credentials import read_sealed
from tidemill.store.access.key_ring import KeyRing, find_key_ring
from tidemill.store.database import Database

#: Reads credentials by name: their fields; unknown names are left out.
CredentialSource = Callable[[Collection[str]], Awaitable[dict[str, dict[str, str]]]]

_source: ContextVar[CredentialSource | None] = ContextVar("tidemill_credential_source", default=None)


def credentials_from(source: CredentialSource) -> None:
    """Read credentials there, for everything that starts from here on."""
    _source.set(source)


@contextmanager
def reading_credentials(source: CredentialSource) -> Iterator[None]:
    """Read credentials there, for what starts within the block."""
    token = _source.set(source)
    try:
        yield
    finally:
        _source.reset(token)


async def read_credentials(names: Collection[str]) -> dict[str, dict[str, str]]:
    """The credentials of these names that there are."""
    source = _source.get()
    return {} if source is None or not names else await source(names)


def stored_credentials(database: Database, key_file: str | None) -> CredentialSource:
    """The credentials of a database, opened with the keys of this process. They are read each time."""

    async def read(names: Collection[str]) -> dict[str, dict[str, str]]:
        rows = await read_sealed(database, names)
        ring = find_key_ring(key_file, database.settings) or KeyRing({})
        return {row["name"]: open_fields(ring, row["key_id"], row["sealed"], row["name"]) for row in rows}

    return read


def seal_fields(ring: KeyRing, fields: Mapping[str, str], name: str) -> tuple[str, bytes]:
    """The fields of a credential, sealed, and the key that has sealed them."""
    return ring.seal(encode(dict(fields)), f"credential {name}")


def open_fields(ring: KeyRing, key_id: str, sealed: bytes, name: str) -> dict[str, str]:
    """The fields of a sealed credential."""
    return decode(ring.open(key_id, sealed, f"credential {name}"), dict[str, str])
