"""What errors of the driver mean: whether the server is away or full, and whether a retry is safe."""

from __future__ import annotations

import asyncpg

from tidemill.core.errors import ConnectionLostError, StoreError

_AWAY = (
    OSError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.IdleSessionTimeoutError,
    asyncpg.TooManyConnectionsError,
    asyncpg.TargetServerAttributeNotMatched,  # No host is the primary yet.
)

# The server cannot store anything until the disk has space or the failover is over.
_FULL = (asyncpg.DiskFullError, asyncpg.OutOfMemoryError, asyncpg.ReadOnlySQLTransactionError)

#: Two transactions collided, or a migration has changed a table under a prepared statement: the one that was rolled
#: back must be retried.
CLASHES = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.InvalidCachedStatementError)

#: The schema has not been migrated yet, or is not one of Tidemill's.
NO_TABLE = (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError)


def is_unavailable(error: BaseException) -> bool:
    """Whether the error means that the server is stopped, stopping or starting: a retry makes sense."""
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

    Two transactions collided, the driver or the system refused to send the statement, or the server ended the session
    instead of answering it.
    """
    error = _driver_error(error)
    if isinstance(error, CLASHES):
        return True
    if isinstance(error, asyncpg.InternalClientError):
        return is_unavailable(error)
    return any(isinstance(each, asyncpg.AdminShutdownError | BrokenPipeError) for each in (error, error.__cause__))


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
