"""How the messages of one source are run: what is known when the engine starts and no message looks up again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from tidemill.engine.batching import Batched
from tidemill.sources.base import Source, read_option, read_time
from tidemill.streams.definition.plans import Plan
from tidemill.streams.definition.stream import Stream
from tidemill.streams.engine.context import Message
from tidemill.streams.engine.decoding import decoder_for
from tidemill.streams.engine.plan_runner import RunningPlan
from tidemill.streams.engine.plan_statistics import PlanStatistics
from tidemill.streams.runner.link import MessageWork

LIVE = "live"


class Route(msgspec.Struct, eq=False):
    """The plans of a source, or of live requests, and what its messages may say."""

    source: str
    decode: Callable[[bytes], Any] | None
    plans: tuple[RunningPlan, ...] = ()
    eligibilities: Collection[str] = ()
    only_plan: RunningPlan | None = None
    """The plan of every message, if there is one and messages choose neither plans nor deadlines."""
    only_batches: Batched | None = None
    """The batches of that plan, if it has nothing else: its messages need no tasks of the event loop."""
    deadline: str | None = None
    eligibilities_from: str | None = None
    known: Collection[str | None] = ()
    """The eligibilities that plans of the stream have."""
    statistics: dict[str, PlanStatistics] = {}
    """By plan."""


def route_of(source: Source, plans: tuple[RunningPlan, ...], declared: Iterable[type[Plan]]) -> Route:
    """The route of a source."""
    has_options = source.deadline is not None or source.eligibilities_from is not None
    only_plan = plans[0] if len(plans) == 1 and not has_options else None
    return Route(
        source.name,
        decoder_for(source.decoder, f"source {source.name}"),
        plans,
        source.eligibilities,
        only_plan,
        None if only_plan is None else only_plan.only_batches,
        source.deadline,
        source.eligibilities_from,
        {plan.eligibility for plan in declared},
    )


def live_route(stream: Stream) -> Route:
    """The route of live requests, each of which names its eligibilities."""
    return Route(LIVE, decoder_for(stream.live_decoder, f"stream {stream.name}, live_decoder"))


def read_options(route: Route, work: MessageWork, message: Message) -> Collection[str]:
    """The eligibilities of a message; notes its deadline. A `ValueError` says what it says wrongly."""
    if work.source < 0:
        return work.eligibilities or ()
    if route.deadline is not None:
        option = read_option(route.deadline, message.headers, message.value)
        if option is not None:
            message.ends_at = message.deadline = read_time(_number(option))
    if route.eligibilities_from is None:
        return route.eligibilities
    option = read_option(route.eligibilities_from, message.headers, message.value)
    if option is None:
        return route.eligibilities
    if not isinstance(option, str | list | tuple | set | frozenset):
        raise ValueError(f"{option!r} names no plans: a list, or names separated by commas, does")
    named = [each.strip() for each in option.split(",")] if isinstance(option, str) else [str(each) for each in option]
    wanted = {each for each in named if each}
    unknown = wanted - {*route.known}
    if unknown:
        raise ValueError(f"no plan has the eligibility {', '.join(sorted(unknown))} that the message names")
    return wanted


def _number(value: Any) -> Any:
    """A time as a number if it is one: headers are text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return value
