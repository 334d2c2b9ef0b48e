"""Credentials for work of this process: where they are read from, without a way around it.

A process says once where credentials are (`credentials_from`); nodes of workflow files then read them by name.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar

#: Reads credentials by name: their fields; unknown names are left out.
CredentialSource = Callable[[Collection[str]], Awaitable[dict[str, dict[str, str]]]]

_source: ContextVar[CredentialSource | None] = ContextVar("tidemill_credential_source", default=None)


def credentials_from(source: CredentialSource) -> None:
    """Read credentials there, for everything that starts from here on."""
    _source.set(source)


async def read_credentials(names: Collection[str]) -> dict[str, dict[str, str]]:
    """The credentials of these names that there are."""
    source = _source.get()
    return {} if source is None or not names else await source(names)
