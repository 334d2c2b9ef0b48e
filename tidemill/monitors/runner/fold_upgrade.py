"""Upgrades a monitor to a new version of its fold: builds the states from the log in the background, then switches.

Until then the processes with the previous version continue. Past events raise no alerts again.
"""

from __future__ import annotations

import structlog

from tidemill.core.codec import storable
from tidemill.monitors.definition.event import Event
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.reducer.entity_state import EntityProblem, EntityState
from tidemill.monitors.reducer.fold import describe
from tidemill.monitors.reducer.reducer import MonitorRules, rebuild
from tidemill.monitors.runner.callbacks import Callbacks
from tidemill.monitors.runner.evaluate import EARLIEST, read_event
from tidemill.store.database import Database
from tidemill.store.monitors.fold_upgrade import Rebuilt, keep_rebuilt, not_rebuilt, take_over
from tidemill.store.monitors.monitors import PAST_EVENTS
from tidemill.store.monitors.problems import note_problems

log = structlog.get_logger("tidemill.monitors")

BUILD_AT_ONCE = 100


async def build_some(database: Database, monitor: Monitor, callbacks: Callbacks) -> bool:
    """Build the states of some more entities for this version; returns True once the monitor has switched to it."""
    version = monitor.fold.version
    rows = await not_rebuilt(database, monitor.name, version, BUILD_AT_ONCE)
    if not rows:
        if await take_over(database, monitor.name, version):
            log.info("the monitor has switched to a new version of its fold", monitor=monitor.name, version=version)
            return True
        return False
    entities, folded = [row["entity"] for row in rows], [row["folded"] for row in rows]
    found = await database.fetch(
        PAST_EVENTS, monitor.name, entities, [EARLIEST] * len(rows), folded, monitor.fold.window
    )
    history: dict[str, list[Event]] = {}
    for row in found:
        history.setdefault(row["entity"], []).append(read_event(row))
    rules = MonitorRules(monitor.name, monitor.fold.noting(callbacks.begin), monitor.triggers, begin=callbacks.begin)
    built: list[Rebuilt] = []
    problems: list[EntityProblem] = []
    for entity, tick in zip(entities, folded, strict=True):
        entity_state = EntityState(entity, folded=tick)
        try:
            past = sorted(history.get(entity, []), key=lambda event: event.place)
            with callbacks.about(entity):
                problems += rebuild(rules, entity_state, past)
        except BaseException as error:  # noqa: BLE001 - user code: it is built again when it is evaluated
            problems.append(EntityProblem("fold", entity, describe(error)))
            entity_state.raw = None
        built.append(
            Rebuilt(entity, tick, entity_state.at, entity_state.id or None, entity_state.count, entity_state.raw)
        )
    await keep_rebuilt(database, monitor.name, version, built)
    async with database.acquire() as connection:
        await note_problems(
            database, connection, monitor.name, [(each.place, each.entity, storable(each.error)) for each in problems]
        )
    return False
