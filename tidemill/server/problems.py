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

from tidemill.core.errors import (
    ConfigError,
    NotFoundError,
    PayloadError,
    StoreError,
    TidemillError,
    UnknownTaskError,
)
from tidemill.dags.errors import InputRefusedError
from tidemill.store.database import is_away, is_full

log = structlog.get_logger("tidemill.server")

MEDIA_TYPE = "application/problem+json"

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (NotFoundError, 404),
    (InputRefusedError, 409),
    (StoreError, 503),
    (ConfigError, 422),
    (PayloadError, 422),
    (UnknownTaskError, 422),
    (TidemillError, 422),
    (ValidationError, 422),
    (asyncpg.DataError, 422),
    (UnicodeEncodeError, 422),
    (OverflowError, 422),
    (RecursionError, 422),
    (TimeoutError, 504),
)


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


def problem(status: int, detail: str, errors: list[dict[str, str]] | None = None) -> Problem:
    """A problem with the usual title of its status."""
    return Problem(HTTPStatus(status).phrase, status, detail, errors=errors or [])


def problem_of(error: Exception) -> tuple[Problem, dict[str, str]]:
    """What to tell of an error, and with which headers. An error that nobody meant is logged; its number is told."""
    if isinstance(error, Refused):
        return problem(error.status, error.detail), error.headers
    if isinstance(error, HTTPException):
        status = 422 if error.status_code == 400 else error.status_code
        return problem(status, _told(error), _fields(error.extra)), dict(error.headers or {})
    if is_away(error) or is_full(error):
        return problem(503, "the database does not answer or cannot store anything now: try again soon"), {
            "Retry-After": "2"
        }
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return problem(status, " ".join(str(error).split()) or kind.__name__), {}
    number = secrets.token_hex(4)
    log.error("a request failed", incident=number, exc_info=error)
    return problem(500, f"this should not have happened: the server's log has more under incident {number}"), {}


def answer(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """The answer to a request that failed."""
    told, headers = problem_of(error)
    return Response(told, status_code=told.status, media_type=MEDIA_TYPE, headers=headers)


def _told(error: HTTPException) -> str:
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
