"""What workflow files of a process may reach: hosts, environment variables and credentials, as its settings say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidemill.engine.outbound_http import allow_hosts, allowing_hosts
from tidemill.engine.secrets.credentials import credentials_from, reading_credentials, stored_credentials
from tidemill.engine.secrets.environment import allow_env, allowing_env
from tidemill.engine.settings import Settings
from tidemill.store.database import Database


def grant_access(settings: Settings, database: Database | None = None) -> None:
    """Grant access to everything that starts from here on; credentials are those of the database."""
    allow_hosts(settings.allow_hosts)
    allow_env(settings.allow_env)
    if database is not None:
        credentials_from(stored_credentials(database, settings.secret_key_file))


@contextmanager
def granting_access(settings: Settings, database: Database) -> Iterator[None]:
    """Grant access to what starts within the block."""
    source = stored_credentials(database, settings.secret_key_file)
    with allowing_hosts(settings.allow_hosts), allowing_env(settings.allow_env), reading_credentials(source):
        yield
