"""Events for a run by the name of their class: found, checked, and encoded for the run's inbox."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec
from pydantic import ValidationError

from tidemill.core.codec import encode
from tidemill.core.did_you_mean import did_you_mean, refuse_unknown
from tidemill.core.duration import Duration
from tidemill.core.errors import ConfigError
from tidemill.core.ticks import Received
from tidemill.engine.runs.start_options import read_later
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event, HumanResponseEvent
from tidemill.flows.encoding.copies import copy_data
from tidemill.flows.encoding.events import EventRegistry, defined_elsewhere, set_reply_token
from tidemill.flows.encoding.journal import TickRecord, encode_tick
from tidemill.flows.encoding.models import wrong_fields


def named_event(workflow: object, name: str, fields: dict[str, Any]) -> Any:
    """Create an event by the bare or qualified name of its class; a `ConfigError` says what does not fit."""
    return make_event(EventRegistry(known_events(workflow)).find(name), fields)


def known_events(workflow: object) -> list[type[Event]]:
    """Return the event classes that a run of this workflow may be sent.

    The classes that steps wait for appear only in their code, so every event class of the application is among them.
    """
    return [*declared(workflow).events, HumanResponseEvent, *defined_elsewhere()]  # pyright: ignore[reportReturnType]


def check_is_known(name: str, known: Sequence[str]) -> None:
    """Raise if run workers have said which event classes they know, and none is meant by this name."""
    # An application that is loaded from its file may have another name there than where it is imported.
    bare = [each.rpartition(".")[2] for each in known]
    if known and (wanted := name.rpartition(".")[2]) not in bare:
        raise ConfigError(f"{name} is not an event class of this application{did_you_mean(wanted, bare)}")


class Later(TypedDict, total=False):
    """When an event is to arrive."""

    delay: Duration | None
    """Not before this long from now on."""
    at: datetime | float | None
    """Not before this moment: a datetime with its time zone, or seconds since 1970."""


class SendOptions(Later, total=False):
    """The options of `send_event`."""

    conn: Any
    """The caller's own open connection: the event is sent if and only if its transaction commits."""


def read_send_options(event: object, options: SendOptions) -> tuple[Any, dict[str, float | None]]:
    """The connection of the caller, and when an event is to arrive; a `ConfigError` for what cannot be sent."""
    refuse_unknown("send_event", options, SendOptions.__annotations__)
    if not isinstance(event, Event):
        raise ConfigError(f"send_event takes an event, such as {_example(event)}, and not {event!r:.100}")
    return options.get("conn"), read_later(options.get("delay"), options.get("at"))


def _example(given: object) -> str:
    return f"{given.__name__}(...)" if isinstance(given, type) and issubclass(given, Event) else "Approved(by='ann')"


def check_step(workflow: Any, step: str) -> None:
    """Raise if a workflow has no step of this name."""
    known = [name for each in declared(workflow).steps.values() for name in (each.name, *each.renamed_from)]
    if step not in known:
        message = f"workflow {type(workflow).__name__} has no step {step!r}; its steps are {', '.join(known)}"
        raise ConfigError(message + did_you_mean(step, known))


def make_event(kind: type[Any], fields: dict[str, Any]) -> Any:
    """Create an event of a class; a `ConfigError` says what does not fit."""
    try:
        return kind(**fields)
    except (ValidationError, TypeError) as error:
        raise ConfigError(f"{kind.__name__} cannot be created from these fields: {wrong_fields(error)}") from error


def unchecked_tick(name: str, fields: dict[str, Any], step: str | None, token: str) -> bytes:
    """Encode the tick of an event whose class is not loaded here; the event is validated when the run receives it."""
    event = encode({"type": name, "value": fields})
    return encode(TickRecord("received", time.time(), event=msgspec.Raw(event), target=step, token=token))


def asking_event(event: Event, token: str) -> Event:
    """Return the same event with a token for its reply."""
    asking = copy_data(event)
    set_reply_token(asking, token)
    return asking


def event_tick(event: Event, step: str | None, token: str) -> bytes:
    """Encode the tick of an event for a run's inbox."""
    return encode_tick(Received(time.time(), event, step, token))
