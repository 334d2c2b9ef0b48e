"""Structured logs: readable on a terminal, JSON otherwise, always with the ids of what they speak of."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any

import structlog

from tidemill.core.printable import on_one_line, printable
from tidemill.engine.telemetry.tracing import current_ids
from tidemill.engine.worker.context import find_current_job
from tidemill.engine.worker.log_capture import find_listener, write_line


def writes_json() -> bool:
    """Whether log lines of this process are JSON, for programs to read."""
    return isinstance(structlog.get_config()["processors"][-1], structlog.processors.JSONRenderer)


def configure_logs(level: str, form: str = "auto", *, colours: bool | None = None, is_copied: bool = False) -> None:
    """Set up logging for a Tidemill process. An application that embeds Tidemill configures its own.

    `is_copied`: copies of this process will call this for themselves, so that loggers must not keep what is set here.
    """
    human = form == "human" or (form == "auto" and sys.stderr.isatty())
    level_of = structlog.processors.add_log_level
    common = [structlog.contextvars.merge_contextvars, add_job, add_trace, level_of, keep_line, add_message]
    if human:
        last = [
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.processors.format_exc_info,
            escape_texts,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty() if colours is None else colours,
                pad_event_to=24,
                # Other formatters show local variables, which may hold secrets.
                exception_formatter=structlog.dev.plain_traceback,
            ),
        ]
    else:
        last = [
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ]
    structlog.configure(
        processors=[*common, *last],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=not is_copied,
    )
    # What tasks and libraries log in Python's own way comes out in the same form.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processors=_for_stdlib(last), foreign_pre_chain=common))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _for_stdlib(last: list[Any]) -> list[Any]:
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]


def escape_texts(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape what a terminal would obey; a second line of a text is indented, so that it is no line of the log."""
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            is_long = name in ("event", "exception", "stack")
            event[name] = printable(value).replace("\n", "\n    ") if is_long else on_one_line(value)
    return event


def add_job(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say which job a line was logged in."""
    job = find_current_job()
    if job is not None:
        event.setdefault("job", job.id)
        event.setdefault("task", job.task)
        event.setdefault("attempt", job.attempt)
    return event


def add_trace(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say which trace a line was logged in, in the words of OpenTelemetry."""
    ids = current_ids()
    if ids is not None:
        event.setdefault("trace_id", ids[0])
        event.setdefault("span_id", ids[1])
    return event


def keep_line(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Keep a line with the attempt at a job or a step that it was logged in."""
    attempt = find_listener()
    if attempt is not None:
        attempt.keep_line(write_line(event, _trace_of(event.get("exc_info"))))
    return event


def add_message(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Say which message of a stream a line was logged for."""
    for name, value in getattr(find_listener(), "log_fields", {}).items():
        event.setdefault(name, value)
    return event


def _trace_of(info: Any) -> str:
    error = sys.exc_info()[1] if info is True else info[1] if isinstance(info, tuple) else info
    return "".join(traceback.format_exception(error)) if isinstance(error, BaseException) else ""
