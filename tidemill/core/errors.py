"""The errors that Tidemill raises on purpose, in one small hierarchy.

Each message says what happened, to which object, and what to do next. The command line prints only the
message of a `TidemillError`; any other exception is a bug in Tidemill.
"""

from __future__ import annotations

_MOST_OF_GROUP = 10


def words_of(error: BaseException) -> str:
    """Return the message of an exception, with those in a group; the exception's own `__str__` may fail."""
    try:
        if isinstance(error, BaseExceptionGroup):
            inner = "; ".join(f"{type(each).__name__}: {words_of(each)}" for each in error.exceptions[:_MOST_OF_GROUP])
            return f"{error}: {inner}{'; ...' if len(error.exceptions) > _MOST_OF_GROUP else ''}"
        return str(error)
    except Exception as broken:  # noqa: BLE001 - the exception's own code is the user's
        return f"(its message cannot be read: {type(broken).__name__})"


class TidemillError(Exception):
    """The root of all errors that Tidemill raises on purpose."""


class ConfigError(TidemillError):
    """A setting, declaration or argument is invalid."""


class ArgumentError(ConfigError):
    """An argument of an operation does not fit its type; `field` names the argument."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class ForbiddenError(TidemillError):
    """The caller's role does not allow the operation."""


class TooManyAttemptsError(TidemillError):
    """Too many wrong tokens or log-ins came from this client; `retry_after` is in seconds."""

    def __init__(self, message: str, *, retry_after: int = 60) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class ConflictError(TidemillError):
    """The current state of the object does not allow the operation."""


class VersionError(ConflictError):
    """An object is not in the version that the caller has read; `version` is the present one, if there is one."""

    def __init__(self, message: str, version: str | None = None) -> None:
        super().__init__(message)
        self.version = version


class VersionRequiredError(TidemillError):
    """A change that must name the version that it replaces."""


class FileProblemsError(ConfigError):
    """A file with errors; `errors` names the place of each and what is wrong."""

    def __init__(self, message: str, errors: list[tuple[str, str]] | None = None) -> None:
        super().__init__(message)
        self.errors = errors or []


class PayloadError(TidemillError):
    """Arguments or a result do not fit their declared types, or cannot be encoded as JSON."""


class UnknownClassError(PayloadError):
    """A stored value is of a class that this process has not defined: other code may have it."""


class BlockedEventLoopError(TidemillError):
    """Code kept the event loop of its process from turning, until the process was ended."""


class UnknownTaskError(TidemillError):
    """The application does not declare a task of this name."""


class NotFoundError(TidemillError):
    """The job, schedule, worker or queue does not exist."""


class StoreError(TidemillError):
    """The database cannot be reached, started or written."""


class ConnectionLostError(StoreError):
    """The connection to the database broke during a call: what it was storing may or may not be stored."""


class SchemaError(StoreError):
    """The database schema is missing, too old, or newer than this version of Tidemill supports."""


class LeaseLostError(TidemillError):
    """This process lost its lease; another process now owns the job or run."""
