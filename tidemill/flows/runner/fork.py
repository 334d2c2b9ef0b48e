"""Time travel: the state of a run after any tick, and a fork: a new run that starts from there.

A fork copies the ticks of the other run up to a tick and continues independently: work that was in progress starts
again, and timers are set again. The event of the last copied tick can be replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ConfigError
from tidemill.core.ticks import DropTimer, Elapsed, Received, SetTimer, Started, Tick
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event
from tidemill.flows.definition.validate import find_state_type
from tidemill.flows.definition.workflow import AnyWorkflow
from tidemill.flows.encoding.journal import decode_tick, encode_tick
from tidemill.flows.reducer.reducer import FlowProgram
from tidemill.flows.reducer.state import FlowState
from tidemill.flows.runner.state_store import StateCell
from tidemill.store.runs.runs import fork_run, read_ticks
from tidemill.store.transaction import Transaction


def replay_ticks(workflow: AnyWorkflow, ticks: Sequence[Tick]) -> tuple[FlowState, dict[str, float]]:
    """Replay ticks; returns the state after them and the timers that were set."""
    program = FlowProgram(declared(workflow).topology, durable=True)
    state = program.begin()
    state.store = StateCell(find_state_type(declared(workflow).steps)).store
    state.copies = True
    timers: dict[str, float] = {}
    for tick in ticks:
        if isinstance(tick, Elapsed):
            timers.pop(tick.timer, None)
        for command in program.reduce(state, tick):
            if isinstance(command, SetTimer):
                timers[command.timer] = command.due
            elif isinstance(command, DropTimer):
                timers.pop(command.timer, None)
    return state, timers


async def fork(
    tx: Transaction,
    workflow: AnyWorkflow,
    source: int,
    *,
    at: int,
    origin: bytes,
    event: Event | None = None,
) -> int:
    """Start a new run from the state of another after tick `at`; `event` replaces the event of that tick."""
    stored = await read_ticks(tx.database, source, limit=max(0, at))
    if not 1 <= at <= len(stored):
        raise ConfigError(f"run r{source} has ticks 1 to {len(stored)}; there is no tick {at} to fork from")
    if stored[0]["seq"] != 1:
        raise ConfigError(
            f"run r{source} has continued as new, so that its ticks before {stored[0]['seq']} are gone: "
            "it cannot be forked; start a new run"
        )
    ticks = [decode_tick(row["data"]) for row in stored]
    more: list[bytes] = []
    if event is not None:
        last = ticks[-1]
        if isinstance(last, Started):
            ticks[-1] = Started(last.at, event)
        elif isinstance(last, Received):
            ticks[-1] = Received(last.at, event, last.target)
        else:
            raise ConfigError(
                f"tick {at} of run r{source} is not an event from outside, so its event cannot be replaced"
            )
        more = [encode_tick(ticks[-1])]
    state, timers = replay_ticks(workflow, ticks)
    if state.status != "running":
        raise ConfigError(f"run r{source} had ended at tick {at}: fork it from an earlier tick")
    kept = at - len(more)
    return await fork_run(
        tx,
        source,
        at=kept,
        version=declared(workflow).topology.version,
        origin=origin,
        more=more,
        timers=timers,
    )
