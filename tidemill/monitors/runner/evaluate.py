"""Evaluates entities at a tick: folds their new events, checks the triggers, and stores the results.

Entities are evaluated in batches. The results of a batch commit together: states and their positions, alerts, notices,
and the jobs that send them.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode, storable
from tidemill.core.errors import LeaseLostError
from tidemill.engine.jobs.task import Task
from tidemill.engine.telemetry.tracing import carrying
from tidemill.monitors.definition.channels import named
from tidemill.monitors.definition.event import Event, MonitorTick
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.reducer.entity_state import (
    HISTORY,
    AlertRecord,
    Checkpoint,
    EntityProblem,
    EntityState,
    EventMarks,
)
from tidemill.monitors.reducer.fold import CHECKPOINT_EVERY, CHECKPOINTS, base_before, describe, first_late
from tidemill.monitors.reducer.reducer import EntityOutcome, MonitorRules, TickIndex, advance, rebuild
from tidemill.monitors.reducer.settings_history import added_ticks, history_of, switched_on
from tidemill.monitors.reducer.silences import find_silence
from tidemill.monitors.runner.alert_trace import trace_alerts
from tidemill.monitors.runner.callbacks import Callbacks
from tidemill.monitors.runner.notices import notify_job
from tidemill.monitors.runner.state_cache import StateCache
from tidemill.store.database import Database, Executor
from tidemill.store.database_errors import CLASHES, is_full, is_unavailable
from tidemill.store.jobs.insert import insert_jobs
from tidemill.store.monitors.alerts import Silence, hold_silences, open_alerts, read_open, resolve_alerts
from tidemill.store.monitors.monitors import (
    COUNT_LATE,
    FIND_WORK,
    FRESH_EVENTS,
    LOAD_CHECKPOINTS,
    LOAD_STATES,
    PAST_EVENTS,
    READ_TICKS,
    SHARDS,
    EntityMove,
    commit_entities,
)
from tidemill.store.monitors.notices import SILENCED, write_notices
from tidemill.store.monitors.problems import note_problems
from tidemill.store.monitors.settings_history import read_settings_history

BATCH = 500
BREATH = 50
EARLIEST = -1e12
RETRY_FIRST, RETRY_MOST = 1.0, 60.0


def shard_of(entity: str) -> int:
    """The share that an entity belongs to, the same in every process."""
    return zlib.crc32(entity.encode()) % SHARDS


def read_event(row: Any) -> Event:
    data = msgspec.json.decode(row["data"])
    return Event(row["source_id"], row["at"], row["entity"], data, row["tick"], row["past"])


class Moved(msgspec.Struct):
    """An entity after its ticks, and what must be stored for it."""

    row: Any
    entity_state: EntityState
    outcome: EntityOutcome
    late_from: float | None = None
    problem: str | None = None
    known: tuple[Checkpoint, ...] = ()


class PostponedEntities:
    """Entities whose evaluation has failed as a whole: when each is tried again, after ever longer pauses."""

    def __init__(self) -> None:
        self._next: dict[str, tuple[int, float]] = {}
        self._problems: list[tuple[str, str, str]] = []

    def add(self, entity: str, error: str) -> None:
        failures = self._next.get(entity, (0, 0.0))[0] + 1
        pause = min(RETRY_FIRST * 2.0 ** min(failures - 1, 16), RETRY_MOST)
        self._next[entity] = (failures, time.monotonic() + pause)
        self._problems.append(("entity", entity, storable(f"its evaluation failed and is tried again: {error}")))

    def forget(self, entity: str) -> None:
        self._next.pop(entity, None)

    def now(self) -> list[str]:
        """The entities whose pause is not over."""
        moment = time.monotonic()
        return [entity for entity, (_, at) in self._next.items() if at > moment]

    def take_problems(self) -> list[tuple[str, str, str]]:
        taken, self._problems = self._problems, []
        return taken


class Evaluation:
    """Evaluates the entities of one monitor in one process."""

    def __init__(
        self,
        database: Database,
        monitor: Monitor,
        task: Task[Any, Any] | None,
        callbacks: Callbacks,
        reached: Callable[[str], None],
    ) -> None:
        self.cache = StateCache(monitor.memory)
        self.writing = 0.0
        """How many seconds the last run has spent on storing results."""
        self._database = database
        self._monitor = monitor
        self._task = task
        self._channels = named(monitor.notify)
        self._callbacks = callbacks
        self._fold = monitor.fold.noting(callbacks.begin)
        self._reached = reached
        self._postponed = PostponedEntities()

    async def run(self, owner: int, shares: Sequence[int], off: Sequence[str], tick: MonitorTick) -> int:
        """Evaluate all entities of these shares up to a tick; returns how many changed."""
        done, self.writing = 0, 0.0
        while rows := await self._database.fetch(
            FIND_WORK, self._monitor.name, list(shares), tick.number, tick.at, BATCH, self._postponed.now()
        ):
            # Always in the same order, so that alerts get the same numbers.
            moved = await self._advance(sorted(rows, key=lambda row: row["entity"]), off, tick)
            self._reached("triggers")
            began = time.monotonic()
            await self._commit_all(owner, moved, tick)
            self.writing += time.monotonic() - began
            done += len(moved)
            if len(rows) < BATCH:
                break
        await self._note_postponed()
        return done

    async def _note_postponed(self) -> None:
        if problems := self._postponed.take_problems():
            async with self._database.acquire() as connection:
                await note_problems(self._database, connection, self._monitor.name, problems)

    # -- reading and deciding ----------------------------------------------------------------------

    async def _advance(self, rows: Sequence[Any], off: Sequence[str], tick: MonitorTick) -> list[Moved]:
        name = self._monitor.name
        entities = [row["entity"] for row in rows]
        changes = await read_settings_history(self._database, name, min(row["folded"] for row in rows), entities)
        switches = history_of((change for change in changes if change["entity"] is None), list(off))
        rules = MonitorRules(name, self._fold, self._monitor.triggers, off=switches, begin=self._callbacks.begin)
        states = await self._states(rules, rows)
        async with self._database.acquire() as connection:
            opened = await read_open(self._database, connection, name, entities)
        fresh = [row for row in rows if row["fresh"]]
        arrivals = await self._arrivals(fresh, tick)
        dues = [row["due_at"] for row in rows if row["due_at"] is not None and row["due_at"] <= tick.at]
        dues += [row["realert_at"] for row in opened if row["realert_at"] is not None and row["realert_at"] <= tick.at]
        numbers = sorted({number for came in arrivals.values() for number in came})
        found = await self._database.fetch(READ_TICKS, name, tick.number, numbers, min(dues, default=tick.at))
        ticks = TickIndex({tick.number: tick, **{row["number"]: MonitorTick(*row) for row in found}}.values())
        alerts: dict[str, dict[str, AlertRecord]] = {}
        for row in opened:
            alerts.setdefault(row["entity"], {})[row["trigger"]] = AlertRecord(monitor=name, **dict(row))
        own_changes: dict[str, list[Any]] = {}
        for change in changes:
            own_changes.setdefault(change["entity"], []).append(change)
        entity_states = [
            self._entity_state(row, states, alerts.get(row["entity"], {}), own_changes.get(row["entity"], ()))
            for row in rows
        ]
        rebuilt = await self._rebuild(rules, rows, entity_states, states)
        moved: list[Moved] = []
        for index, (row, entity_state) in enumerate(zip(rows, entity_states, strict=True)):
            came = arrivals.get(entity_state.entity, {})
            done = await self._move(rules, row, entity_state, came, ticks)
            if done is not None:
                if _changed_since(tick, entity_state, rules):
                    # The change counts from the next tick on, at which the entity is evaluated.
                    entity_state.due = tick.at if entity_state.due is None else min(entity_state.due, tick.at)
                done.outcome.problems += rebuilt.get(entity_state.entity, [])
                moved.append(done)
            if index % BREATH == BREATH - 1:
                await asyncio.sleep(0)
        return moved

    async def _move(
        self, rules: MonitorRules, row: Any, entity_state: EntityState, came: dict[int, list[Event]], ticks: TickIndex
    ) -> Moved | None:
        """Take an entity through its ticks; None if its code fails altogether, and it is tried again later."""
        late = first_late(entity_state.place, [came[number] for number in sorted(came)])
        past: list[Event] = []
        if late is not None:
            entity_state.checkpoints = await self._checkpoints(entity_state.entity)
            base = base_before(entity_state.checkpoints, late)
            past = await self._past([entity_state.entity], [EARLIEST if base is None else base.at], [ticks.numbers[-1]])
        known = tuple(entity_state.checkpoints)
        try:
            with self._callbacks.about(entity_state.entity):
                outcome = advance(rules, entity_state, came, ticks, past=past)
        except BaseException as error:  # noqa: BLE001 - user code: the other entities go on
            self._postponed.add(entity_state.entity, describe(error))
            return None
        self._postponed.forget(entity_state.entity)
        problem = next((each.error for each in reversed(outcome.problems) if each.place == "fold"), None)
        return Moved(row, entity_state, outcome, None if late is None else late[0], problem, known)

    async def _states(self, rules: MonitorRules, rows: Sequence[Any]) -> dict[str, bytes]:
        states: dict[str, bytes] = {}
        missing: list[str] = []
        for row in rows:
            kept = self.cache.get(row["entity"], row["folded"]) if row["version"] == rules.fold.version else None
            if kept is None:
                missing.append(row["entity"])
            else:
                states[row["entity"]] = kept
        if missing:
            for row in await self._database.fetch(LOAD_STATES, self._monitor.name, missing):
                if row["state"] is not None and row["version"] == rules.fold.version:
                    states[row["entity"]] = row["state"]
        return states

    async def _arrivals(self, fresh: Sequence[Any], tick: MonitorTick) -> dict[str, dict[int, list[Event]]]:
        if not fresh:
            return {}
        since = [row["fresh_at"] for row in fresh]
        rows = await self._database.fetch(
            FRESH_EVENTS,
            self._monitor.name,
            [row["entity"] for row in fresh],
            since,
            [row["folded"] for row in fresh],
            min(since),
            tick.number,
        )
        arrivals: dict[str, dict[int, list[Event]]] = {}
        for row in rows:
            arrivals.setdefault(row["entity"], {}).setdefault(row["tick"], []).append(read_event(row))
        return arrivals

    def _entity_state(
        self, row: Any, states: dict[str, bytes], alerts: dict[str, AlertRecord], changes: Sequence[Any]
    ) -> EntityState:
        raw, state = states.get(row["entity"]), None
        if raw is not None:
            try:
                state = self._monitor.fold.read(raw)
            except BaseException:  # noqa: BLE001 - user code
                # Written by code with another state class: rebuilt from the log.
                del states[row["entity"]]
                raw = None
        due = [row["due_at"], *(alert.realert_at for alert in alerts.values())]
        return EntityState(
            entity=row["entity"],
            state=state,
            raw=raw,
            folded=row["folded"],
            at=row["at"],
            id=row["id"] or "",
            last_at=row["last_at"],
            count=row["count"],
            due=min((each for each in due if each is not None), default=None),
            label_history=history_of(changes, {} if row["labels"] is None else decode(row["labels"])),
            added=added_ticks(changes),
            marks=EventMarks() if row["marks"] is None else decode(row["marks"], EventMarks),
            alerts=alerts,
        )

    async def _rebuild(
        self, rules: MonitorRules, rows: Sequence[Any], entity_states: Sequence[EntityState], states: dict[str, bytes]
    ) -> dict[str, list[EntityProblem]]:
        """Rebuild missing states from the log."""
        lost = [s for row, s in zip(rows, entity_states, strict=True) if s.entity not in states and row["count"]]
        if not lost:
            return {}
        events = await self._past(
            [s.entity for s in lost], [EARLIEST] * len(lost), [s.folded for s in lost], most=rules.fold.window
        )
        history: dict[str, list[Event]] = {}
        for event in events:
            history.setdefault(event.entity, []).append(event)
        problems: dict[str, list[EntityProblem]] = {}
        for entity_state in lost:
            try:
                with self._callbacks.about(entity_state.entity):
                    problems[entity_state.entity] = rebuild(rules, entity_state, history.get(entity_state.entity, []))
            except BaseException as error:  # noqa: BLE001 - user code: it fails again, and is postponed, when it is moved
                problems[entity_state.entity] = [EntityProblem("fold", entity_state.entity, describe(error))]
        return problems

    async def _past(
        self, entities: list[str], since: list[float], ticks: list[int], *, most: int | None = None
    ) -> list[Event]:
        rows = await self._database.fetch(
            PAST_EVENTS, self._monitor.name, entities, since, ticks, most or self._monitor.fold.window
        )
        return sorted((read_event(row) for row in rows), key=lambda event: event.place)

    async def _checkpoints(self, entity: str) -> list[Checkpoint]:
        rows = await self._database.fetch(LOAD_CHECKPOINTS, self._monitor.name, entity, self._monitor.fold.version)
        return [Checkpoint(row["at"], row["id"], row["count"], row["state"]) for row in rows]

    # -- writing ----------------------------------------------------------------------------------

    async def _commit_all(self, owner: int, moved: Sequence[Moved], tick: MonitorTick) -> None:
        """Store the results of entities, together if possible; one that cannot be stored is tried again later."""
        try:
            await self._commit(owner, moved, tick)
        except Exception as error:
            if isinstance(error, (LeaseLostError, *CLASHES)) or is_unavailable(error) or is_full(error):
                raise
            if len(moved) > 1:
                for each in moved:
                    await self._commit_all(owner, [each], tick)
            else:
                self.cache.drop(moved[0].entity_state.entity)
                self._postponed.add(moved[0].entity_state.entity, f"it cannot be stored: {describe(error)}")

    async def _commit(self, owner: int, moved: Sequence[Moved], tick: MonitorTick) -> None:
        name, version = self._monitor.name, self._monitor.fold.version
        moves = [_entity_move(each) for each in moved]
        opened = sorted((alert for each in moved for alert in each.outcome.opened), key=lambda alert: alert.tick)
        resolved = [alert for each in moved for alert in each.outcome.resolved]
        problems = [(p.place, p.entity, storable(p.error)) for each in moved for p in each.outcome.problems]
        late = sum(each.outcome.late for each in moved)
        async with self._database.transaction() as connection:
            if late:  # Counted first, because the monitor is always locked before its entities.
                await connection.execute(self._database.sql(COUNT_LATE), name, late)
            await commit_entities(self._database, connection, name, version, owner, moves)
            self._reached("commit")
            await resolve_alerts(
                self._database, connection, [(a.id, a.resolved_at or tick.at, a.resolution or "") for a in resolved]
            )
            silences = await hold_silences(self._database, connection, name, tick.at) if opened else []
            rows = [_as_row(alert, silences) for alert in opened]
            made = await open_alerts(self._database, connection, rows, [alert.explain for alert in opened])
            by_key = {(a.entity, a.trigger, a.key, a.tick): a for a in opened}
            news = [(row["id"], by_key[(row["entity"], row["trigger"], row["key"], row["tick"])]) for row in made]
            traces = await trace_alerts(self._database, connection, name, news)
            problems += await self._store_notices(connection, news, resolved, silences, traces)
            await note_problems(self._database, connection, name, problems)
        for each in moved:
            if each.entity_state.raw is not None:
                self.cache.put(each.entity_state.entity, each.entity_state.folded, each.entity_state.raw)

    async def _store_notices(
        self,
        connection: Executor,
        news: Sequence[tuple[int, AlertRecord]],
        resolved: Sequence[AlertRecord],
        silences: Sequence[Silence],
        traces: Mapping[int, str],
    ) -> list[tuple[str, str, str]]:
        """Store the notices, and the jobs that send them; returns the problems of channels."""
        problems: list[tuple[str, str, str]] = []
        if not self._channels or self._task is None or not (news or resolved):
            return problems
        notices: list[tuple[int, str, str, str]] = []
        jobs: dict[tuple[str, str], tuple[float | None, str | None]] = {}
        for id, alert in [*news, *((alert.id, alert) for alert in resolved)]:
            if alert.resolution == HISTORY:
                continue
            over = alert.resolved_at is not None and alert.kind != "momentary"
            what = "resolved" if over else "opened" if alert.again_after is None else "again"
            moment = alert.resolved_at if over and alert.resolved_at is not None else alert.opened_at
            silence = None if over else find_silence(silences, alert.facts, alert.opened_at)
            for channel_name, channel in self._channels.items():
                try:
                    if not channel.wants(alert.trigger, alert.severity) or (over and not channel.resolved):
                        continue
                    batch, at = channel.batch(alert.facts, moment, alert.tick, over=over)
                except BaseException as error:  # noqa: BLE001 - the code of a user's channel
                    problems.append((f"channel {channel_name}", alert.entity, storable(describe(error))))
                    continue
                if silence is not None and not channel.is_escalation:
                    batch, at = f"{SILENCED}{silence.id}", silence.ends_at
                notices.append((id, channel_name, what, batch))
                jobs[(channel_name, batch)] = at, traces.get(id)
        await write_notices(self._database, connection, self._monitor.name, notices)
        new = [
            carrying(notify_job(self._task, self._monitor.name, name, batch, at), trace)
            for (name, batch), (at, trace) in jobs.items()
        ]
        if new:
            await insert_jobs(self._database, connection, new, notify=True)
        return problems


def _changed_since(tick: MonitorTick, entity_state: EntityState, rules: MonitorRules) -> bool:
    """Whether a setting was changed after the tick was complete, so that the entity must be evaluated again."""
    later = 2**62
    labelled = entity_state.label_history is not None and entity_state.label_history.between(tick.number, later)
    return bool(labelled or switched_on(rules.off, tick.number, later))


def _entity_move(each: Moved) -> EntityMove:
    row, entity_state = each.row, each.entity_state
    fresh = [point for point in entity_state.checkpoints if point not in each.known]
    return EntityMove(
        entity=entity_state.entity,
        shard=row["shard"],
        was=row["folded"],
        was_due=row["due_at"],
        folded=entity_state.folded,
        at=entity_state.at,
        id=entity_state.id or None,
        last_at=entity_state.last_at,
        count=entity_state.count,
        due_at=entity_state.due,
        state=entity_state.raw,
        marks=encode(entity_state.marks),
        problem=None if each.problem is None else storable(each.problem),
        drop_from=each.late_from,
        checkpoints=tuple((slot, c.at, c.id, c.count, c.state) for slot, c in _slots(fresh)),
    )


def _slots(fresh: Sequence[Checkpoint]) -> list[tuple[int, Checkpoint]]:
    """The slot of each new checkpoint: in turn, so that the previous one stays."""
    return list({(c.count // CHECKPOINT_EVERY) % CHECKPOINTS: c for c in fresh}.items())


def _as_row(alert: AlertRecord, silences: Sequence[Silence]) -> dict[str, Any]:
    silence = find_silence(silences, alert.facts, alert.opened_at)
    return {
        **{name: getattr(alert, name) for name in alert.__struct_fields__ if name not in ("id", "explain", "acked_at")},
        "silence": None if silence is None else silence.id,
    }
