"""Fork a run: a new run that starts from the state of another after any of its ticks.

A fork copies the ticks of the other run up to a tick and continues independently, with the present version of the
workflow: work that was in progress starts again, and timers are set again. The event of the last copied tick can be
replaced.
"""

from __future__ import annotations

import time

import msgspec

from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.ticks import Resumed
from tidemill.engine.runs.durable_run import NOTHING_BEGUN
from tidemill.flows.definition.declared import declared
from tidemill.flows.definition.events import Event
from tidemill.flows.definition.workflow import AnyWorkflow
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.encoding.journal import encode_record, encode_tick, read_record
from tidemill.flows.reducer.reducer import RULES
from tidemill.flows.runner.restore import migrate_to, replay_ticks
from tidemill.flows.runner.steps.human_input import Questionnaire
from tidemill.store.runs.run_turn import RunTurn
from tidemill.store.runs.runs import fork_run, read_ticks, show_run
from tidemill.store.runs.versions import flow_definitions
from tidemill.store.transaction import Transaction


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
    definitions = await flow_definitions(tx.database, (await show_run(tx.database, source))["kind"])
    ticks = [row["data"] for row in stored]
    more: list[bytes] = []
    if event is not None:
        ticks[-1] = _with_event(ticks[-1], event, f"tick {at} of run r{source}")
        more = [ticks[-1]]
    program, asked = declared(workflow).program(durable=True), RunTurn(source, 0, 0)
    questionnaire = Questionnaire(program.topology, program.begin())
    try:
        state, timers, version = replay_ticks(
            workflow, ticks, definitions, follow=lambda state, tick: questionnaire.follow(state, [tick], asked)
        )
        if state.status != "running":
            raise ConfigError(f"run r{source} had ended at tick {at}: fork it from an earlier tick")
        migrated = migrate_to(workflow, state, version, definitions, time.time())
    except PayloadError as error:
        raise ConfigError(f"run r{source} cannot be forked from tick {at}: {error}") from error
    if migrated is not None:
        more.append(encode_tick(migrated))
    more.append(encode_tick(Resumed(time.time(), queued=True, rules=RULES, forked=True)))
    return await fork_run(
        tx,
        source,
        at=at if event is None else at - 1,
        version=declared(workflow).topology.version,
        origin=origin,
        more=more,
        timers=timers,
        asks=asked.asks,
    )


def _with_event(data: bytes, event: Event, what: str) -> bytes:
    """Return a tick from outside with another event."""
    record = read_record(data)
    if record.kind not in ("started", "received"):
        raise ConfigError(f"{what} is not an event from outside, so its event cannot be replaced")
    record.event, record.token = msgspec.Raw(encode_event(event)), ""
    return encode_record(record, NOTHING_BEGUN, at=record.at)
