"""Check what a durable run is started with: the start event, or its fields by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from pydantic import AliasChoices

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import PayloadError
from tidemill.engine.jobs.enqueue_options import OPTIONS
from tidemill.engine.runs.start_options import START_OPTIONS
from tidemill.flows.definition.declared import declared

_START_OPTIONS = tuple(sorted(START_OPTIONS | {"conn"}))
_OPTIONS_ELSEWHERE = OPTIONS.difference(_START_OPTIONS) | {"start_event"}


def check_start_event(workflow: Any, given: Any) -> None:
    """Raise a `PayloadError` if a workflow does not start with this event; None means that there is none."""
    expected = declared(workflow).start_event_class
    if given is not None and not isinstance(given, expected):
        name = type(workflow).__name__
        raise PayloadError(f"workflow {name} starts with a {expected.__name__}, and not with {given!r:.200}")


def check_start_fields(workflow: Any, fields: Iterable[str], *, are_keywords: bool = False) -> None:
    """Raise a `PayloadError` for a field that the start event does not declare.

    A start event without declared fields takes any; as keywords of `start`, not those that are probably options.
    """
    event = declared(workflow).start_event_class
    known = _names(event)
    options = _START_OPTIONS if are_keywords else ()
    for name in fields:
        if known and name not in known:
            hint = did_you_mean(name, (*known, *options)) or f"; it has {', '.join(known)}"
            raise PayloadError(f"workflow {type(workflow).__name__}: {event.__name__} has no field {name!r}{hint}")
        if not known and are_keywords and (name in _OPTIONS_ELSEWHERE or _meant_option(name)):
            raise PayloadError(
                f"workflow {type(workflow).__name__}: start has no option {name!r}{_meant_option(name)}; a "
                f"field of this name goes into the start event: app.start(..., {event.__name__}({name}=...))"
            )


def start_field_names(workflow: Any) -> list[str]:
    """The fields that the start event of a workflow declares."""
    return list(_names(declared(workflow).start_event_class))


def start_defaults(workflow: Any) -> dict[str, Any]:
    """The fields of the start event that may be left out, and what they are then, where JSON can say it."""
    fields = declared(workflow).start_event_class.model_fields
    plain = str | int | float | bool | None
    return {name: field.default for name, field in fields.items() if isinstance(field.default, plain)}


@lru_cache(maxsize=1024)
def _meant_option(name: str) -> str:
    # A word that is close to a short option (`tag`, `wait`) may well be a field.
    return did_you_mean(name, [each for each in _START_OPTIONS if len(each) > 4])


@lru_cache(maxsize=1024)
def _names(event: Any) -> tuple[str, ...]:
    return tuple(_names_of(event))


def _names_of(event: Any) -> Iterator[str]:
    for name, field in event.model_fields.items():
        yield name
        alias = field.validation_alias
        for other in alias.choices if isinstance(alias, AliasChoices) else (alias,):
            if isinstance(other, str):
                yield other
