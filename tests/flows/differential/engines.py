"""Run a program: on `llama-index-workflows`, on Tidemill in memory, and durably under simulated faults."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from tests.flows.differential.building import TIMEOUT, build, state_of
from tests.flows.differential.dialects import Dialect
from tests.flows.differential.programs import Program
from tidemill.engine.simulation.simulation import Faults
from tidemill.flows.definition import declared as declarations
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.runner.state_store import StateCell
from tidemill.flows.simulate import simulate

UNHANDLED = "no step takes"


class Outcome(msgspec.Struct, frozen=True):
    """What a run gives to its caller. The order of events of steps that run at the same time is nobody's promise."""

    result: Any
    error: str
    shown: tuple[tuple[str, int], ...]
    """The published events with how often each was; of a failed run only the last."""
    internal: tuple[tuple[str, int], ...]
    """The internal events with how often each was; none of a failed run, whose steps were stopped somewhere."""
    state: dict[str, Any] | None
    """The state at the end; None of a failed run, whose steps were stopped somewhere."""


def reply(dialect: Dialect, event: Any) -> Any:
    """Return the answer of the person; None if the event asks nothing."""
    if isinstance(event, dialect.Ask):
        return dialect.Answer(where=event.where, id=event.id, turn=event.turn, v=len(event.where) + event.turn)
    for ask, answer in zip(dialect.questions, dialect.replies, strict=True):
        if isinstance(event, ask):
            return answer(n=event.n + 5, id=event.id)
    return None


async def run_in_memory(program: Program, dialect: Dialect) -> Outcome:
    """Run a program in this process."""
    handler = build(program, dialect)(timeout=TIMEOUT).run(n=program.n, id="0")
    shown = []
    async for event in handler.stream_events(expose_internal=True):
        shown.append(event)
        answer = reply(dialect, event)
        if answer is not None:
            handler.ctx.send_event(answer)
    try:
        result = await handler
    except Exception as error:  # noqa: BLE001 - the outcome of the program
        return failed(error, shown)
    return succeeded(result, shown, await handler.ctx.store.get_state())


def run_simulated(program: Program, dialect: Dialect, seed: int, faults: Faults) -> Outcome:
    """Run a program durably on virtual time, with crashes, lost answers, idle releases and takeovers."""
    flow = build(program, dialect)(timeout=None)

    def person(event: Any) -> Any:
        return reply(dialect, event)

    ran = simulate(flow, seed=seed, faults=faults, person=person, n=program.n, id="0")
    try:
        result = ran.result()
    except Exception as error:  # noqa: BLE001 - the outcome of the program
        return failed(error, ran.shown)
    return succeeded(result, ran.events(), folded(flow, ran.ticks))


#: What may happen to the processes that run a program.
NO_FAULTS = Faults()
FAULTS = Faults(crashes=3, pauses=1, cuts=1, slow=0.01, lost=0.1)


def once_each(outcome: Outcome) -> Outcome:
    """Return an outcome without how often events were published: a lost process may have published some already.

    Internal events are rebuilt from the journal, so that none of them is there twice."""
    return msgspec.structs.replace(outcome, shown=tuple((event, 1) for event, _ in outcome.shown))


def apart_from_unhandled(outcome: Outcome) -> tuple[Outcome, Counter[str]]:
    """Return an outcome without the reports of events that no step takes, and these with how often each was."""
    reports = {event: times for event, times in outcome.internal if event.startswith(UNHANDLED)}
    rest = tuple(each for each in outcome.internal if each[0] not in reports)
    return msgspec.structs.replace(outcome, internal=rest), Counter(reports)


def folded(flow: Any, ticks: Iterable[Any]) -> Any:
    """Return the state that the ticks of a run lead to."""
    known = declarations.declared(flow)
    program = FlowProgram(known.topology)
    state = program.begin()
    state.store = StateCell(known.topology.state_type).store
    for tick in ticks:
        program.reduce(state, tick)
    return state.store


def succeeded(result: Any, events: Iterable[Any], state: Any) -> Outcome:
    found = list(events)
    published = counted(described(each) for each in found if not is_internal(each))
    internal = counted(filter(None, (described_internal(each) for each in found if is_internal(each))))
    return Outcome(plain(result), "", published, internal, plain(state_of(state)))


def failed(error: Exception, events: list[Any]) -> Outcome:
    last = [described(each) for each in events if not is_internal(each)][-1:]
    return Outcome(None, f"{type(error).__name__}: {error}", counted(last), (), None)


def counted(described: Iterable[str]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(described).items()))


def is_internal(event: Any) -> bool:
    return any(kind.__name__ == "InternalDispatchEvent" for kind in type(event).__mro__)


def described_internal(event: Any) -> str | None:
    """Return an internal event in words that are the same in both implementations; None if it depends on timing.

    How quickly the person answers decides how often a run is idle, and how quickly others end whether a step has to
    queue and which of several events it takes is its last.
    """
    name = type(event).__name__
    if name == "UnhandledEvent":
        return f"{UNHANDLED} {short(event.event_type)}"
    if name != "StepStateChanged" or event.step_state.value == "preparing":
        return None
    cause = "" if event.name.endswith(("_join", "_both")) else f" from {short(event.input_event_name)}"
    made = "" if event.output_event_name is None else f" with {short(event.output_event_name)}"
    return f"{event.name} {event.step_state.value}{cause}{made}"


def short(name: str) -> str:
    """Return the name of an event class without what differs between the implementations."""
    return name.removesuffix("'>").rpartition(".")[2].removeprefix("Tidemill").removeprefix("Workflows")


def described(event: Any) -> str:
    """Return an event in words that are the same in both implementations."""
    name = short(type(event).__name__)
    if name == "FailedEvent" or name == "WorkflowFailedEvent":
        return f"failed {event.step_name} after {event.attempts}"
    fields = {
        each: getattr(event, each) for each in ("where", "n", "id", "turn", "v") if each in type(event).model_fields
    }
    return f"{name} {fields}{plain(event.result) if name == 'StopEvent' else ''}"


def plain(value: Any) -> Any:
    """Return a value with its dicts in one order, so that it can be compared as text."""
    if isinstance(value, dict):
        return {key: plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def run(coroutine: Any) -> Any:
    """Run a coroutine in an event loop of its own."""
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))
