"""One table for all errors of operations: the class, its problem type, its HTTP status and its gRPC code."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.core.errors import (
    ArgumentError,
    ConfigError,
    ConflictError,
    FileProblemsError,
    ForbiddenError,
    NotFoundError,
    PayloadError,
    StoreError,
    TidemillError,
    TooManyAttemptsError,
    UnknownTaskError,
    VersionError,
    VersionRequiredError,
)

PREFIX = "urn:tidemill:"


class ErrorKind(NamedTuple):
    """How one class of errors is named over HTTP and gRPC."""

    error: type[Exception]
    type: str
    status: int
    code: str


#: The first line whose class fits is the one that counts.
ERRORS = (
    ErrorKind(ArgumentError, "invalid-argument", 422, "INVALID_ARGUMENT"),
    ErrorKind(NotFoundError, "not-found", 404, "NOT_FOUND"),
    ErrorKind(VersionError, "version-conflict", 412, "FAILED_PRECONDITION"),
    ErrorKind(VersionRequiredError, "version-required", 428, "FAILED_PRECONDITION"),
    ErrorKind(FileProblemsError, "invalid-file", 422, "INVALID_ARGUMENT"),
    ErrorKind(ConflictError, "conflict", 409, "FAILED_PRECONDITION"),
    ErrorKind(ForbiddenError, "forbidden", 403, "PERMISSION_DENIED"),
    ErrorKind(TooManyAttemptsError, "too-many-attempts", 429, "RESOURCE_EXHAUSTED"),
    ErrorKind(StoreError, "unavailable", 503, "UNAVAILABLE"),
    ErrorKind(PayloadError, "invalid-payload", 422, "INVALID_ARGUMENT"),
    ErrorKind(UnknownTaskError, "unknown-task", 422, "INVALID_ARGUMENT"),
    ErrorKind(ConfigError, "invalid", 422, "INVALID_ARGUMENT"),
    ErrorKind(TidemillError, "refused", 422, "INVALID_ARGUMENT"),
    ErrorKind(TimeoutError, "timeout", 504, "DEADLINE_EXCEEDED"),
)


def kind_of(error: BaseException) -> ErrorKind | None:
    """The line of the table that an error belongs to."""
    return next((each for each in ERRORS if isinstance(error, each.error)), None)


def error_of(type: str, detail: str, field: str = "") -> Exception | None:
    """The error that a problem type stands for; None if it is not one of ours."""
    for each in ERRORS:
        if PREFIX + each.type == type:
            if each.error is ArgumentError:
                return ArgumentError(field, detail.removeprefix(f"{field}: ") if field else detail)
            return each.error(detail)
    return None
