"""`tidemill db`: the schema's version, up and down, backups, and a shell."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tidemill.cli.arguments import Json
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, HERE, ConnectionOptions, ServerOptions
from tidemill.cli.open_database import open_or_fail, opened, require_database
from tidemill.cli.render import out, print_json, table
from tidemill.cli.run.role_process import application
from tidemill.core.errors import ConfigError
from tidemill.engine.settings import Settings
from tidemill.ops.admin.check import check_database
from tidemill.ops.operator.operation import Nothing
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.maintenance.backup import (
    BackupReport,
    back_up,
    find_program,
    restore as restore_backup,
    without_password,
)
from tidemill.store.maintenance.move import move as move_database, reopen as reopen_database
from tidemill.store.maintenance.reseal import Resealed, reseal_payloads
from tidemill.store.migrate import (
    OWN_CHAIN,
    Chain,
    ChainVersion,
    build_indexes,
    chain_versions,
    downgrade as downgrade_schema,
    migrate as migrate_schema,
)

COMMAND = "tidemill cli"

commands = App(name="db", help="The database: its schema's version, migrations, backups, a shell.")


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
    connection: ConnectionOptions = HERE,
) -> None:
    """Say where the database is, which applications it has, and whether their schemas fit this code."""
    known = application(app, connection.arguments()) if app else None
    where, chains = asyncio.run(
        _status(known.settings if known else connection.settings(), known.declarations.chains if known else ())
    )
    if json:
        return print_json({"where": where, "chains": chains})
    out().print(where)
    made = table("application", "schema", "migrations", "version", "needed", "remark", wide="remark")
    for each in chains:
        remark = "up to date" if each.version == each.needed else "run `tidemill db migrate`"
        if each.version > each.needed:
            remark = "migrated by newer code; this code may go on"
        made.add_row(each.application or "", each.schema, each.migrations, str(each.version), str(each.needed), remark)
    return out().print(made)


@commands.command
def check(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> int:
    """Find rows that do not fit together, and say what to do; returns 1 if there are any. Changes nothing.

    Without --application, the tables of all applications in the database are checked.
    """
    found = connection.do(check_database, Nothing()).findings
    if json:
        print_json(found)
    elif not found:
        out().print("everything fits together")
    several = len({each.application for each in found}) > 1
    for each in found if not json else ():
        more = ", …" if each.count > len(each.examples) else ""
        where = f"{each.application}: " if several else ""
        out().print(
            f"{where}{each.problem} ({each.count}): {', '.join(each.examples)}{more}\n  {each.advice}", highlight=False
        )
    return 1 if found else 0


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
    connection: ConnectionOptions = HERE,
) -> None:
    """Bring the schema to the version that this code needs; makes the embedded database if there is none.

    Without an application, the schemas of all applications in the database are migrated.
    """
    known = application(app, connection.arguments()) if app else None
    chains = (OWN_CHAIN, *(known.declarations.chains if known else ()))
    applied, built = asyncio.run(_migrate(known.settings if known else connection.settings(), chains))
    for name in applied:
        out().print(f"applied {name}")
    for name in built:
        out().print(f"built index {name}")
    if not applied and not built:
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
    connection: ConnectionOptions = HERE,
) -> None:
    """Undo migrations. What they had made is dropped, with all that is in it."""
    known = application(app, connection.arguments()) if app else None
    undoing = _own_chain(known.declarations.chains, chain) if known else OWN_CHAIN
    if not 0 <= to <= undoing.latest:
        raise ConfigError(f"there is no schema version {to}; this code knows 0 to {undoing.latest}")
    if not yes and not agreed(f"undo everything above version {to}, and lose what is in it"):
        return
    undone = asyncio.run(_downgrade(known.settings if known else connection.settings(), undoing, to))
    for name in undone:
        out().print(f"undid {name}")
    if not undone:
        out().print(f"nothing to do: the schema is not above version {to}")


@commands.command
def reseal(
    app: Annotated[
        str | None,
        Parameter(help="The application that declares the codec: app.py, app.py:name or package.module."),
    ] = None,
    /,
    *,
    json: Json = False,
    connection: ConnectionOptions = HERE,
) -> int:
    """Seal payloads again with the newest key, while everything goes on; afterwards the older keys can be removed."""
    settings = connection.settings() if app is None else application(app, connection.arguments()).settings
    made = asyncio.run(_reseal(settings))
    if json:
        print_json(made)
    else:
        out().print(f"{made.count:,} payloads are sealed again, with key {made.key_id}")
        if made.left:
            out().print(f"{made.left:,} were changed by others meanwhile: run it again")
    return 1 if made.left else 0


@commands.command
def shell(*, connection: ConnectionOptions = HERE) -> int:
    """Open psql on the database."""
    return asyncio.run(_shell(connection))


@commands.command
def backup(
    folder: Annotated[Path, Parameter(help="A new or empty folder for the backup.")],
    /,
    *,
    connection: ConnectionOptions = HERE,
) -> None:
    """Back up the whole database while everything goes on: jobs, runs, messages, states, and your own tables in it."""
    _report("backed up", asyncio.run(_back_up(connection.settings(), folder)))


@commands.command
def restore(
    folder: Annotated[Path, Parameter(help="The folder of a backup.")], /, *, connection: ConnectionOptions = HERE
) -> None:
    """Restore a backup into an empty database, and check that every row has arrived.

    What ran at the time of the backup goes on where it was: leases of its processes have lapsed.
    """
    _report("restored", asyncio.run(_restore(connection.settings(), folder)))


@commands.command
def move(
    *,
    to: Annotated[str, Parameter(help="The URL of an empty database, on any server from PostgreSQL 15 on.")],
    live: Annotated[
        bool,
        Parameter(
            help="Move it under running processes: they can write nothing while it is copied, and wait afterwards, "
            "until they are started again with the new URL."
        ),
    ] = False,
    connection: ConnectionOptions = HERE,
) -> None:
    """Copy everything into another database, check that every row has arrived, and make the old one read-only.

    Set TIDEMILL_DATABASE_URL to the new one, and start again. `tidemill db reopen` goes back to the old one.
    """
    _report("moved", asyncio.run(_move(connection.settings(), to, live=live)))
    public, _ = without_password(to)
    out().print(f"now set TIDEMILL_DATABASE_URL={public} (with its password) and start every process again")


@commands.command
def reopen(*, connection: ConnectionOptions = HERE) -> None:
    """Let a database that was moved be written to again: the copy must no longer be used."""
    was_closed = asyncio.run(_reopen(connection.settings()))
    out().print("it can be written to again" if was_closed else "nothing to do: it can be written to")


def psql_command(dsn: str) -> tuple[list[str], dict[str, str]]:
    """How to start psql, with the password in its environment, where other users cannot read it."""
    public, secret = without_password(dsn)
    return [find_program("psql"), public], dict(secret)


def _report(done: str, report: BackupReport) -> None:
    size = f", {report.megabytes:g} MB" if report.megabytes else ""
    out().print(f"{done} {report.rows} rows of {report.tables} tables{size}: {report.where}")


def _own_chain(chains: Sequence[Chain], schema: str | None) -> Chain:
    """The chain of an application that is meant."""
    meant = [chain for chain in chains if schema in (None, chain.schema)]
    if len(meant) != 1:
        names = ", ".join(str(chain.schema) for chain in chains) or "none"
        raise ConfigError(f"name the application's migrations with --chain: {names}")
    return meant[0]


async def _status(settings: Settings, chains: Sequence[Chain]) -> tuple[str, list[ChainVersion]]:
    async with opened(settings, schema=False) as database:
        return database.where, await chain_versions(database, chains)


async def _migrate(settings: Settings, chains: Sequence[Chain]) -> tuple[list[str], list[str]]:
    async with opened(settings, create=True, schema=False) as database:
        applied = [Path(each.up).stem for chain in chains for each in await migrate_schema(database, chain)]
        return applied, await build_indexes(database)


async def _downgrade(settings: Settings, chain: Chain, to: int) -> list[str]:
    async with opened(settings, schema=False) as database:
        return [Path(each.up).stem for each in await downgrade_schema(database, chain, to=to)]


async def _reseal(settings: Settings) -> Resealed:
    async with opened(settings) as database:
        return await reseal_payloads(database)


async def _back_up(settings: Settings, folder: Path) -> BackupReport:
    async with opened(settings, schema=False) as database:
        return await back_up(database, folder)


async def _restore(settings: Settings, folder: Path) -> BackupReport:
    async with opened(settings, create=True, schema=False) as database:
        return await restore_backup(database, folder)


async def _move(settings: Settings, to: str, *, live: bool) -> BackupReport:
    target = DatabaseSettings(url=to, schema=settings.schema).validate()
    async with opened(settings, schema=False) as database:
        other = Database(target, label=COMMAND)
        try:
            await open_or_fail(other)
            return await move_database(database, other, live=live, label=COMMAND)
        finally:
            await other.close()


async def _reopen(settings: Settings) -> bool:
    require_database(settings)
    database = Database(settings.database(), label=COMMAND)
    try:
        if database.embedded is not None:
            await asyncio.to_thread(database.embedded.ensure)
        return await reopen_database(database)
    finally:
        await database.close()


async def _shell(connection: ConnectionOptions) -> int:
    """psql as a child, not in our place: if we run the embedded server, it has to outlive the shell."""
    settings = connection.settings()
    async with opened(settings, schema=False) as database:
        command, secrets = psql_command(database.dsn)
        environment = {**os.environ, **secrets}
        if not settings.transaction_pooler:
            environment.setdefault("PGOPTIONS", f"-c search_path={database.schema},{database.installation},public")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for psql.
        return await asyncio.to_thread(subprocess.call, command, env=environment)
