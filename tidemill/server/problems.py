"""Errors as `application/problem+json`: what happened, to which object, and what to do next; never how we failed."""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any

import asyncpg
import msgspec
import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException
from pydantic import ValidationError

from tidemill.core.errors import ArgumentError, FileProblemsError, TooManyAttemptsError, VersionError
from tidemill.ops.operator.errors import PREFIX, kind_of
from tidemill.store.database_errors import is_transient

log = structlog.get_logger("tidemill.server")

MEDIA_TYPE = "application/problem+json"

#: Errors that are not ours and mean that a value cannot be read or stored.
_UNREADABLE = (ValidationError, asyncpg.DataError, UnicodeEncodeError, OverflowError, RecursionError)


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong with a request."""

    title: str
    status: int
    detail: str
    type: str = "about:blank"
    errors: list[dict[str, str]] = []


class Refused(Exception):
    """A request that is answered with a problem."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def problem(status: int, detail: str, errors: list[dict[str, str]] | None = None, type: str = "about:blank") -> Problem:
    """A problem with the usual title of its status."""
    return Problem(HTTPStatus(status).phrase, status, detail, type, errors or [])


def problem_of(error: Exception) -> tuple[Problem, dict[str, str]]:
    """The problem to answer with for an error, and its headers. An unexpected error is logged under a number."""
    if isinstance(error, Refused):
        return problem(error.status, error.detail), error.headers
    if isinstance(error, HTTPException):
        status = 422 if error.status_code == 400 else error.status_code
        return problem(status, _http_detail(error), _fields(error.extra)), dict(error.headers or {})
    if is_transient(error):
        away = "the database does not answer or cannot store anything now: try again soon"
        return problem(503, away, type=f"{PREFIX}unavailable"), {"Retry-After": "2"}
    words = " ".join(str(error).split()) or type(error).__name__
    kind = kind_of(error)
    if kind is not None:
        fields = [{"field": error.field, "message": error.problem}] if isinstance(error, ArgumentError) else []
        if isinstance(error, FileProblemsError):
            fields = [{"field": place, "message": message} for place, message in error.errors]
        headers = {"Retry-After": "5"} if kind.status == 503 else {}
        if isinstance(error, TooManyAttemptsError):
            headers["Retry-After"] = str(error.retry_after)
        if isinstance(error, VersionError) and error.version is not None:
            headers["ETag"] = f'"{error.version}"'
        return problem(kind.status, words, fields, PREFIX + kind.type), headers
    if isinstance(error, _UNREADABLE):
        return problem(422, words), {}
    number = secrets.token_hex(4)
    log.error("a request failed", incident=number, exc_info=error)
    return problem(500, f"this should not have happened: the server's log has more under incident {number}"), {}


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """The answer to a request that failed."""
    problem, headers = problem_of(error)
    return Response(problem, status_code=problem.status, media_type=MEDIA_TYPE, headers=headers)


def _http_detail(error: HTTPException) -> str:
    if error.status_code == 405:
        return "this address does not know this method"
    if error.status_code == 404:
        return "there is nothing at this address"
    return " ".join(str(error.detail).split())


def _fields(extra: Any) -> list[dict[str, str]]:
    if not isinstance(extra, list):
        return []
    return [
        {"field": str(each.get("key", "")), "message": str(each.get("message", ""))}
        for each in extra
        if isinstance(each, dict)
    ]
