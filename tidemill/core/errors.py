"""Every error that Tidemill raises on purpose, in one small tree.

Each message says what happened, to which object, and what to do next. The command line prints the
message of a `TidemillError` and nothing else; any other exception is a defect of ours.
"""

from __future__ import annotations


def words_of(error: BaseException) -> str:
    """What an exception says; not every exception can say anything."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - the exception's own code is the user's
        return f"(its message cannot be read: {type(broken).__name__})"


class TidemillError(Exception):
    """The root of all errors that Tidemill raises on purpose."""


class ConfigError(TidemillError):
    """A setting, declaration or argument that cannot mean anything sensible."""


class ArgumentError(ConfigError):
    """An argument of an operation that does not fit its type; `field` says which."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}" if field else problem)
        self.field = field
        self.problem = problem


class ForbiddenError(TidemillError):
    """An operation that the caller's scope does not allow."""


class ConflictError(TidemillError):
    """An operation that the present state of its object does not allow."""


class PayloadError(TidemillError):
    """Arguments or a result that do not fit their declared types, or that cannot become JSON."""


class UnknownTaskError(TidemillError):
    """A task name that the application does not declare."""


class NotFoundError(TidemillError):
    """A job, schedule, worker or queue that does not exist."""


class StoreError(TidemillError):
    """The database cannot be reached, started or written."""


class SchemaError(StoreError):
    """The database schema is missing, too old, or newer than this code knows."""


class LeaseLostError(TidemillError):
    """This process no longer owns what it tried to finish; another owner has taken over."""
