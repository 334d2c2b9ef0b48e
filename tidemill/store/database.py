"""Connections to PostgreSQL: a pool, dedicated connections, and retries while the server is unavailable.

Restarts, killed backends and failovers are expected: a call waits until the server answers again (`patience` seconds,
or forever) and returns a working connection. Without a URL, the embedded server under `directory` is started unless
another process runs it.

Statements name two schemas, which `Database.sql` replaces with the real ones: `tidemill` has the tables of one
application, `installation` those that all applications of a database share. The first application has its tables in
the installation's schema, every further one in its own schema (see the migration `applications`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from tidemill.core.encoding.sealing import (
    PayloadCodec,
    open_bytes,
    open_json,
    seal_bytes,
    seal_json,
    seal_members,
    seal_text,
)
from tidemill.core.errors import ConfigError, StoreError, TidemillError
from tidemill.store.access.payload_codec import load_codec
from tidemill.store.connection.known_types import KnownTypesConnection
from tidemill.store.connection.libpq_files import login_of
from tidemill.store.connection.pool import Pool
from tidemill.store.connection.settings import DatabaseSettings
from tidemill.store.connection.setup import PooledConnection, set_types, watched
from tidemill.store.connection.url import place_of, to_primary, to_writable
from tidemill.store.database_errors import CLASHES, NO_TABLE, is_unavailable, one_line, own_error
from tidemill.store.schemas import SCHEMA_NAMES, SHARED_CHANNELS, schema_of

if TYPE_CHECKING:
    from tidemill.store.embedded.server import EmbeddedServer
    from tidemill.store.notify import ListeningConnection

T = TypeVar("T")
Connection = asyncpg.Connection
Executor = asyncpg.Connection | asyncpg.pool.PoolConnectionProxy

#: Errors of the driver, and those that it passes on: of the system, and of values that it cannot encode.
_DRIVERS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    ConnectionError,
    UnicodeEncodeError,
    OverflowError,
)

#: Errors of the driver that code outside of the statement expects.
_EXPECTED = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError, asyncpg.LockNotAvailableError)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0

#: The applications of an installation, and the schema of each.
LIST_APPLICATIONS = "SELECT name, schema FROM installation.application ORDER BY created_at, name"

#: The first application takes the installation's schema, with the rows that existed before there were applications.
ADOPT_ROWS = """
INSERT INTO installation.application (name, schema)
SELECT $1, $2 WHERE NOT EXISTS (SELECT FROM installation.application) ON CONFLICT DO NOTHING
"""


class Database:
    """The connections of one process to the database. Open it once; it reconnects by itself."""

    def __init__(
        self,
        settings: DatabaseSettings,
        *,
        label: str = "tidemill",
        session: Mapping[str, str] | None = None,
        opens: bool = True,
        listens_with: Database | None = None,
    ) -> None:
        """`opens`: whether sealed payloads are opened when they are read; `listens_with` hears notifications for it."""
        self.settings = settings.validate().resolved()
        self.embedded = _embedded(settings.directory) if settings.url is None else None
        # Compiling one of our short statements takes longer than running it a hundred times.
        self._session = {"application_name": label, "jit": "off", **(session or {})}
        self._pool: Pool | None = None
        self.translates_errors = False
        """Whether errors of the driver leave this database as errors of ours: for an application's own calls."""
        self._rewritten: dict[str, str] = {}
        #: The applications of the database and their schemas; None until they have been looked up.
        self.applications: dict[str, str] | None = None
        self.opens = opens
        self.listening: ListeningConnection | None = None
        """The connection that all listeners share, while there are some: see `store.notify`."""
        self.listens_with = listens_with
        self._opening: Database | None = None

    @cached_property
    def codec(self) -> PayloadCodec | None:
        """How payloads are sealed at rest; None if they are stored as they are."""
        return load_codec(self.settings)

    def seal(self, data: bytes) -> bytes:
        """A payload in JSON as it is stored."""
        return data if self.codec is None else seal_json(self.codec, data)

    def seal_value(self, data: bytes | None) -> bytes | None:
        """The same for a payload that may be missing."""
        return data if self.codec is None or data is None else seal_json(self.codec, data)

    def seal_each(self, values: Iterable[bytes | None]) -> list[bytes | None]:
        """Payloads in JSON as they are stored."""
        return [self.seal_value(value) for value in values]

    def seal_members(self, data: bytes | None, *names: str) -> bytes | None:
        """A JSON object as it is stored: these of its members are payloads."""
        return data if self.codec is None or data is None else seal_members(self.codec, data, names)

    def seal_text(self, text: str | None) -> str | None:
        """A text with payloads in it, such as the message of an error, as it is stored."""
        return text if self.codec is None or text is None else seal_text(self.codec, text)

    def seal_bytes(self, data: bytes | None) -> bytes | None:
        """A payload in bytes as it is stored."""
        return data if self.codec is None or data is None else seal_bytes(self.codec, data)

    def open_bytes(self, data: bytes | None) -> bytes | None:
        """A payload in bytes as it was before it was stored, whether or not this database opens what it reads."""
        return data if self.codec is None or data is None else open_bytes(self.codec, data)

    def open_json(self, data: bytes) -> bytes:
        """The same for JSON."""
        return data if self.codec is None else open_json(self.codec, data)

    async def opening(self) -> Database:
        """This database for a caller that may read payloads: another pool if this one does not open them."""
        if self.opens or self.codec is None:
            return self
        if self._opening is None:
            self._opening = Database(self.settings, label=self._session["application_name"], session=self._session)
            await self._opening.open(patience=30.0)
        return self._opening

    @property
    def dsn(self) -> str:
        return self.embedded.dsn if self.embedded else to_primary(str(self.settings.url))

    @property
    def direct_dsn(self) -> str:
        """The address past the pooler, if there is one: for LISTEN, and for what needs one session."""
        return to_primary(self.settings.listen_url or self.dsn)

    @property
    def installation(self) -> str:
        """The schema of the tables that all applications share: tokens, the audit trail, hosts."""
        return self.settings.schema

    @property
    def application(self) -> str | None:
        """The application whose tables are used; None if it is undecided."""
        known = self.applications or {}
        return self.settings.application or (next(iter(known)) if len(known) == 1 else None)

    @property
    def schema(self) -> str:
        """The schema of the application's tables."""
        wanted, known = self.settings.application, self.applications
        if not known:
            if wanted is not None and known is None:
                raise StoreError("the database is not open: call `await database.open()` first")
            return self.installation
        if self.application is None:
            raise ConfigError(
                f"the database at {self.where} has several applications ({', '.join(known)}): "
                "name one of them with --application, or in TIDEMILL_APPLICATION"
            )
        return known.get(self.application) or schema_of(self.application, self.installation)

    @property
    def can_listen(self) -> bool:
        """Whether wake-ups arrive: not through a pooler that gives each transaction another connection."""
        return not self.settings.transaction_pooler or self.settings.listen_url is not None

    def sql(self, statement: str) -> str:
        """The statement with the real schemas in place of `tidemill` and `installation`."""
        known = self._rewritten.get(statement)
        if known is None:
            if len(self._rewritten) >= _MOST_STATEMENTS:
                self._rewritten.clear()
            known = self._rewritten[statement] = SCHEMA_NAMES.sub(
                lambda found: self.schema if found[1] == "tidemill" else self.installation, statement
            )
        return known

    def channel(self, name: str) -> str:
        """The NOTIFY channel of this name in the application's schema."""
        return f"{self.installation if name in SHARED_CHANNELS else self.schema}_{name}"

    async def locate(self, *, patience: float | None = None) -> None:
        """Look up the schema of the application's tables; the first application adopts existing rows."""
        wanted = self.settings.application

        async def read_applications(connection: Executor) -> list[Any]:
            rows = await connection.fetch(self.sql(LIST_APPLICATIONS))
            if rows or wanted is None:
                return rows
            await connection.execute(self.sql(ADOPT_ROWS), wanted, self.installation)
            return await connection.fetch(self.sql(LIST_APPLICATIONS))

        try:
            self.located(await self.run(read_applications, patience=patience))
        except (*NO_TABLE, asyncpg.InsufficientPrivilegeError):
            self.located(())  # not migrated yet, or not a Tidemill database

    def located(self, rows: Sequence[Any]) -> None:
        """Store the rows of `LIST_APPLICATIONS`."""
        found = {row[0]: row[1] for row in rows}
        if found != self.applications:
            self.applications = found
            self._rewritten.clear()

    async def open(self, *, patience: float | None = None) -> Database:
        """Connect; wait at most `patience` seconds for a server that does not answer (None: forever)."""
        if self._pool is None:
            self._pool = Pool(self._connect_once, self.settings.pool_size, self._asked_at)
        await self.locate(patience=patience)
        return self

    async def close(self) -> None:
        """Close the pool, and stop the embedded server if this process runs it."""
        if self._opening is not None:
            opening, self._opening = self._opening, None
            await opening.close()
        if self._pool is not None:
            pool, self._pool = self._pool, None
            try:
                await asyncio.wait_for(pool.close(), timeout=5)
            except TimeoutError:
                pool.terminate()
        if self.embedded is not None:
            await asyncio.to_thread(self.embedded.stop)

    async def __aenter__(self) -> Database:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, *, patience: float | None = None) -> Connection:
        """A connection outside the pool, which belongs to the caller."""
        return await self._patiently(self._connect_once, patience)

    async def connect_to_look_up(self) -> Connection:
        """A connection outside the pool for statements that find their rows by keys and are repeated often.

        Each statement is planned once, since planning takes longer than running it for a few rows. The plan must fit
        tables of any size: one made for an empty table must not scan it when it is full.
        """
        connection = await self.connect()
        if not self.settings.transaction_pooler:  # A pooler plans each statement again.
            await connection.execute("SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off")
        return connection

    async def connect_to_listen(self) -> Connection:
        """A connection that can LISTEN, or hold a session; it bypasses the pooler, if there is one."""
        return await self._patiently(self._connect_listener, None)

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Executor]:
        """A connection from the pool."""
        pool = self._opened()
        with self._own_errors():
            connection = await self._patiently(pool.take, None)
            try:
                yield connection
            except BaseException as error:
                _leave_read_only(pool, error)
                await pool.give_back(connection, settled=False)
                raise
            await pool.give_back(connection)

    @asynccontextmanager
    async def transaction(self, *, patience: float | None = None) -> AsyncIterator[Executor]:
        """A pooled connection in a transaction that commits when the block ends without an error."""
        pool = self._opened()

        async def begin() -> tuple[Any, Any]:
            connection = await pool.take()
            try:
                transaction = connection.transaction()
                await transaction.start()
            except BaseException:
                await pool.give_back(connection)
                raise
            return connection, transaction

        with self._own_errors():
            connection, transaction = await self._patiently(begin, patience)
            try:
                try:
                    yield connection
                except BaseException as error:
                    await _roll_back(transaction)
                    _leave_read_only(pool, error)
                    raise
                await transaction.commit()
            finally:
                await pool.give_back(connection)

    async def run(self, work: Callable[[Executor], Awaitable[T]], *, patience: float | None = None) -> T:
        """Run idempotent work, and retry it until the server answers."""

        async def once() -> T:
            pool = self._opened()
            connection = await pool.take()
            try:
                result = await work(connection)
            except BaseException:
                await pool.give_back(connection, settled=False)
                raise
            await pool.give_back(connection)
            return result

        with self._own_errors():
            return await self._patiently(once, patience)

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        """Raise errors of ours in place of the driver's, where this database serves an application's own calls."""
        try:
            yield
        except _DRIVERS as error:
            if not self.translates_errors or isinstance(error, _EXPECTED):
                raise
            raise self.own_error(error) from error

    def own_error(self, error: BaseException) -> TidemillError:
        """The error of ours that says what an error of the driver means for the caller."""
        return own_error(error, self.where)

    async def fetch(self, statement: str, *args: Any, patience: float | None = 30.0) -> list[asyncpg.Record]:
        """Fetch the rows of a statement that may safely run twice."""
        sql = self.sql(statement)
        return await self.run(lambda connection: connection.fetch(sql, *args), patience=patience)

    async def fetchrow(self, statement: str, *args: Any, patience: float | None = 30.0) -> asyncpg.Record | None:
        rows = await self.fetch(statement, *args, patience=patience)
        return rows[0] if rows else None

    def _asked_at(self, now: float) -> float:
        """When the call was asked for that takes a connection now: the earliest of those that wait comes first."""
        return now

    def _opened(self) -> Pool:
        if self._pool is None:
            raise StoreError("the database is not open: call `await database.open()` first")
        return self._pool

    async def _connect_listener(self) -> Connection:
        return watched(await asyncpg.connect(to_writable(self.direct_dsn), timeout=10, **login_of(self.direct_dsn)))

    async def _connect_once(self) -> Connection:
        login: dict[str, Any] = {"timeout": 10, **login_of(self.dsn)}
        if self.settings.transaction_pooler:
            connection = await asyncpg.connect(
                self.dsn, statement_cache_size=0, connection_class=PooledConnection, **login
            )
        else:
            connection = await asyncpg.connect(
                to_writable(self.dsn),
                statement_cache_size=200,
                server_settings=self._session,
                connection_class=KnownTypesConnection,
                **login,
            )
        await set_types(connection, self.codec if self.opens else None)
        return watched(connection)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]], patience: float | None) -> T:
        loop = asyncio.get_running_loop()
        give_up = None if patience is None else loop.time() + patience
        pause, warned = _FIRST_PAUSE, False
        while True:
            try:
                return await attempt()
            except (asyncpg.InvalidPasswordError, asyncpg.InvalidAuthorizationSpecificationError) as error:
                raise StoreError(f"the database refused the login: {error}") from error
            except asyncpg.InvalidCatalogNameError as error:
                raise StoreError(f"{error}: create it, or check the database URL") from error
            except CLASHES as error:
                if give_up is not None and loop.time() + pause > give_up:
                    raise StoreError(f"the statement kept colliding with other transactions: {error}") from error
            except Exception as error:
                if not is_unavailable(error):
                    raise
                if self._pool is not None:
                    self._pool.expire()
                if give_up is None and pause >= _LONGEST_PAUSE and not warned:
                    warned = True
                    _log().warning("waiting for the database", at=self.where, error=one_line(error))
                if give_up is not None and loop.time() + pause > give_up:
                    raise StoreError(
                        f"the database at {self.where} does not answer ({one_line(error)}); "
                        "is the server running and the URL right?"
                    ) from error
            if self.embedded is not None:
                await asyncio.to_thread(self.embedded.ensure)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    @property
    def where(self) -> str:
        """The server's address for messages, without the password."""
        if self.embedded is not None:
            return f"{Path(self.settings.directory).resolve()} (embedded)"
        return place_of(str(self.settings.url))


def _log() -> Any:
    import structlog  # slow to load, and rarely needed

    return structlog.get_logger("tidemill.store")


def _leave_read_only(pool: Pool, error: BaseException) -> None:
    """Close the connections to a server that is read-only: the next ones may lead to the primary."""
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        pool.expire()


async def _roll_back(transaction: Any) -> None:
    try:
        await transaction.rollback()
    except Exception as error:
        if not is_unavailable(error):
            raise
        # The connection is lost, and the transaction with it.


_MOST_STATEMENTS = 4096  # Statements built from filters are unbounded in number.


def _embedded(directory: str) -> EmbeddedServer:
    from tidemill.store.embedded.server import EmbeddedServer  # slow to load, and unused with an external server

    return EmbeddedServer(Path(directory))


def columns(rows: Sequence[Sequence[Any]], width: int) -> list[list[Any]]:
    """Transpose rows into one list per column, for array parameters."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
