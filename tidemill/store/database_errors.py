"""What errors of the driver mean: whether the server is away or full, and whether a retry is safe."""

from __future__ import annotations

import asyncpg

from tidemill.core.errors import ConfigError, ConnectionLostError, StoreError, TidemillError

_AWAY = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.TargetServerAttributeNotMatched,  # No host is the primary yet.
    asyncpg.ReadOnlySQLTransactionError,  # The address leads to a standby, or to a database that was moved.
)

# The server answers, and cannot store anything until the disk has space or another server is promoted.
_FULL = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError, asyncpg.ReadOnlySQLTransactionError)

#: The server refused to begin a change: nothing was stored.
_NOT_BEGUN = (asyncpg.AdminShutdownError, asyncpg.ReadOnlySQLTransactionError, BrokenPipeError)

#: Two transactions collided, or a migration has changed a table under a prepared statement: the one that was rolled
#: back must be retried.
CLASHES = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)

#: Seconds to wait before the next try on a server that answers at once, and is read-only.
PAUSE_READ_ONLY = 1.0

#: The schema has not been migrated yet, or is not one of Tidemill's.
NO_TABLE = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)


def is_unavailable(error: BaseException) -> bool:
    """Whether the error means that the server is stopped, stopping, starting or not the primary: a retry makes sense.

    The retry needs a new connection: the old one is closed, or leads to a server that cannot write.
    """
    error = _driver_error(error)
    if isinstance(error, asyncpg.InterfaceError):
        # The driver raises this when a connection has just been closed; other interface errors are bugs.
        return "connection is closed" in str(error) or "connection was closed" in str(error)
    if isinstance(error, asyncpg.InternalClientError) and not isinstance(error, _AWAY):
        # Raised when the server's last message has arrived but the connection is not closed yet.
        return "another operation (2) is in progress" in str(error)
    return isinstance(error, _AWAY)


def is_safe_to_retry(error: BaseException) -> bool:
    """Whether it is certain that nothing was stored, so that a retry is safe.

    Two transactions collided, the driver or the system refused to send the statement, the server ended the session
    instead of answering it, or the server is read-only.
    """
    error = _driver_error(error)
    if isinstance(error, CLASHES):
        return True
    if isinstance(error, asyncpg.InternalClientError):
        return is_unavailable(error)
    return any(isinstance(each, _NOT_BEGUN) for each in (error, error.__cause__))


def is_full(error: BaseException) -> bool:
    """Whether the server answers but cannot store anything at the moment."""
    return isinstance(error, _FULL)


def is_transient(error: BaseException) -> bool:
    """Whether the error is transient: a long-running process retries later.

    That includes a `StoreError` raised when such an error has lasted longer than `patience`.
    """
    if isinstance(error, StoreError) and error.__cause__ is not None:
        error = error.__cause__
    return is_unavailable(error) or is_full(error) or isinstance(error, CLASHES)


def _driver_error(error: BaseException) -> BaseException:
    """The error of the driver that a lost connection was reported for."""
    return error.__cause__ if isinstance(error, ConnectionLostError) and error.__cause__ is not None else error


def own_error(error: BaseException, where: str) -> TidemillError:
    """The error of ours that says what an error of the driver means for the caller of the database at `where`."""
    message = one_line(error)
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return ConnectionLostError(f"the database at {where} is read-only ({message}): nothing was stored; repeat it")
    if is_unavailable(error):
        return ConnectionLostError(
            f"the connection to the database at {where} was lost ({message}): what was being stored may or may "
            "not be there; look, or repeat it with a unique_key"
        )
    if isinstance(error, asyncpg.DataError | asyncpg.InterfaceError | UnicodeEncodeError | OverflowError):
        return ConfigError(f"the database cannot store this: {message}")
    return StoreError(f"the database at {where} refuses: {message}")


def one_line(error: BaseException) -> str:
    """What an error says, in one line."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return (
            "it is read-only: a standby, or a database that was moved; after a move set TIDEMILL_DATABASE_URL to "
            "the new server, or go back with `tidemill db reopen`"
        )
    return (str(error) or type(error).__name__).splitlines()[0]
