"""Take a run of another version of its workflow along: rename, migrate, and check that this version has all it needs.

    data, moved = migrate_state(state, older, topology, hook)     a `PayloadError` says everything that does not fit

The state of the run, folded by the topology of its own version, becomes a snapshot of this version. Steps and classes
that were renamed get their new names; the workflow's own `@migrate` method may change state and events; then everything
that the run holds must be known here: steps with work, queued events or waits, event classes, and the fields of the
state. Pure, except for the user's method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pydantic import AliasChoices, BaseModel

from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.flows.definition.events import Event
from tidemill.flows.definition.older_run import OlderEvent, OlderRun
from tidemill.flows.definition.signature import StepSpec
from tidemill.flows.definition.stored_topology import OlderVersion
from tidemill.flows.definition.topology import Topology
from tidemill.flows.encoding.classes import find_class, qualified_name
from tidemill.flows.encoding.dict_like import DictState
from tidemill.flows.encoding.events import present_name
from tidemill.flows.encoding.snapshot import FlowSnapshot, decode_state, encode_state
from tidemill.flows.encoding.values import pack, unpack
from tidemill.flows.reducer.event_buffer import undo
from tidemill.flows.reducer.record import READS, key_with_names
from tidemill.flows.reducer.state.flow_state import FlowState, Work

Hook = Callable[[OlderRun], OlderRun]

WAYS_OUT = (
    "keep what it needs in the workflow, or declare what was renamed (`@step(renamed_from=...)`, `@renamed_from(...)`) "
    "or changed (`@migrate`), deploy that, and then `tidemill runs migrate`; or cancel the run"
)


def migrate_state(
    state: FlowState, older: OlderVersion, topology: Topology, hook: Hook | None
) -> tuple[bytes, FlowState]:
    """Return the state of a run of another version as a snapshot of this one, and as the state."""
    active = [work for work in state.works.values() if work.slot >= 0 or work.waiting or work.replies]
    undo(state, *(work for work in active if work.queue is None))  # They run again from their last suspensions.
    snap: FlowSnapshot = decode(encode_state(state, by_value=True), FlowSnapshot)
    names = _Names(older, topology)
    names.rename(snap)
    changes_state = hook is not None and _apply(hook, snap, state.version)
    _retype_state(snap, topology)
    _renew_reads(snap, all_of_state=changes_state)
    if missing := names.missing_steps(snap):
        raise PayloadError("; ".join(missing))
    if missing := sorted(name for name in set(_classes_in(snap)) if _find(name) is None):
        classes = ", ".join(missing)
        raise PayloadError(
            f"the run holds values of class{'es' * (len(missing) > 1)} {classes}, which the code does not have"
        )
    if lost := _lost_fields(snap):
        raise PayloadError(f"the run's state has {', '.join(lost)}, which the state's class no longer has")
    snap.version = topology.version
    moved = decode_state(msgspec.json.encode(snap), topology)
    if problems := list(_problems(moved, topology, names)):
        raise PayloadError("; ".join(problems))
    for work in moved.works.values():
        _move_to_queue(work, topology)
    return encode_state(moved), moved


class _Names:
    """The steps of a run by the names that they have in this version."""

    def __init__(self, older: OlderVersion, topology: Topology) -> None:
        self._older = older
        self._topology = topology

    def step(self, name: str) -> str:
        """Return the present name of a step. After a deploy is rolled back, that is a former name of it."""
        if name in self._topology.steps:
            return name
        before = self._older.topology.steps.get(name)
        former = () if before is None else (each for each in before.renamed_from if each in self._topology.steps)
        return self._topology.renamed.get(name) or next(iter(former), name)

    def rename(self, snap: FlowSnapshot) -> None:
        """Give the steps in a snapshot, and the classes in the records of steps, their new names."""
        for work in snap.works:
            work["step"] = self.step(work["step"])
            work["recovered"] = [[self.step(name), count] for name, count in work["recovered"]]
            for operation in work["record"]:
                operation[2] = key_with_names(operation[1], operation[2], present_name, self.step)
            work["spare"] = [[event, target and self.step(target)] for event, target in work["spare"]]
            if _find(work["cause"]) is None:
                work["cause"] = qualified_name(Event)  # It is only shown.
        snap.queues = {self.step(name): ids for name, ids in snap.queues.items()}
        for batch in snap.batches:
            batch["step"] = self.step(batch["step"])
            batch["arrived"] = {self.step(name): events for name, events in batch["arrived"].items()}
            batch["released"] = sorted(map(self.step, batch["released"]))
        snap.pairs = [[self.step(name), *rest] for name, *rest in snap.pairs]
        snap.buffers = [[self.step(name), *rest] for name, *rest in snap.buffers]
        snap.compensations = [[self.step(name), event] for name, event in snap.compensations]

    def missing_steps(self, snap: FlowSnapshot) -> list[str]:
        """Return what the run needs of steps that this version does not have."""
        needed: dict[str, str] = {}
        for work in snap.works:
            waits = [each[0].partition(" ")[0].rpartition(".")[2] for each in work["waiting"]]
            needed.setdefault(work["step"], f"waits for {', '.join(waits)} in" if waits else "is at")
        for batch in snap.batches:
            needed.setdefault(batch["step"], "collects events of")
            for name in batch["arrived"]:
                needed.setdefault(name, "collects events for")
        for name, *_ in (*snap.pairs, *snap.buffers):
            needed.setdefault(name, "collects events for")
        for name, _ in snap.compensations:
            needed.setdefault(name, "has a compensation in")
        return [
            f"the run {what} step {name!r}, which the workflow no longer has"
            for name, what in needed.items()
            if name not in self._topology.steps
        ]

    def lost_joins(self, state: FlowState) -> Iterator[str]:
        """Yield the joins that would never happen: a batch is open, and its joining step no longer takes it."""
        for before, joins in self._older.topology.joins_of_batch.items():
            if any(batch.step == self.step(before) for batch in state.batches.values()):
                now = self._topology.joins_of_batch.get(self.step(before), ())
                for name in joins:
                    if self.step(name) not in now:
                        what = f"events of step {self.step(before)!r} are to be collected by step {name!r}"
                        yield f"{what}, which no longer takes them"


def _problems(state: FlowState, topology: Topology, names: _Names) -> Iterator[str]:
    """Yield what the steps of this version do not take."""
    for work in state.works.values():
        spec = topology.steps[work.step]
        if (why := _refuses(spec, work.input)) is not None:
            yield f"step {work.step!r} {why}"
    for (name, _), waiting in state.pairs.items():
        if {param for param, _ in topology.steps[name].collect_params} != set(waiting):
            yield f"step {name!r} now takes other events together than those that the run has collected for it"
    for name, event in state.compensations:
        if (why := _refuses(topology.steps[name], event)) is not None:
            yield f"the compensation {name!r} {why}"
    yield from names.lost_joins(state)


def _refuses(spec: StepSpec, given: Any) -> str | None:
    """Return why a step cannot run with this input; None if it can."""
    if isinstance(given, dict):
        if set(given) != {name for name, _ in spec.collect_params}:
            return "now takes other events together than those that the run has for it"
        given = list(given.values())
    elif isinstance(given, list) != (spec.collection_param is not None):
        return "now takes a list of events" if spec.collection_param else "no longer takes a list of events"
    elif spec.collect_params:
        return "now takes several events together"
    for event in given if isinstance(given, list) else [given]:
        if not spec.accepts(type(event)):
            return f"no longer takes {type(event).__name__}, which the run has for it"
    return None


def _move_to_queue(work: Work, topology: Topology) -> None:
    """Place work in progress where its step is placed now; it starts again if that is another place."""
    queue = topology.steps[work.step].queue
    if queue != work.queue:
        work.restarted = work.slot >= 0
        work.queue = queue


def _retype_state(snap: FlowSnapshot, topology: Topology) -> None:
    """Read the state as the type that the workflow declares now."""
    store = snap.store
    if not isinstance(store, dict) or "$model" not in store:
        return
    declared = None if topology.state_type is dict else topology.state_type
    found = _find(store["$model"])
    if declared is not None and found is not declared and not (found and issubclass(found, declared)):
        # With `json` it is validated.
        snap.store = {**store, "$model": qualified_name(declared), "json": store.get("json", {})}
    elif declared is None and found is None:
        snap.store = {**store, "$model": qualified_name(DictState)}


def _lost_fields(snap: FlowSnapshot) -> list[str]:
    """Return the fields of the state that would be dropped silently, because its class does not have them."""
    store = snap.store
    cls = _find(store["$model"]) if isinstance(store, dict) and "$model" in store else None
    if cls is None or not issubclass(cls, BaseModel) or cls.model_config.get("extra") == "allow":
        return []
    known = set(cls.model_fields)
    for field in cls.model_fields.values():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        known |= {each for each in choices if isinstance(each, str)}
    return sorted({*store["fields"], *store.get("json", {})} - known)


def _renew_reads(snap: FlowSnapshot, *, all_of_state: bool) -> None:
    """Let recorded reads that this version cannot read, or that are of a changed state, give what the state has now."""
    for work in snap.works:
        for operation in work["record"]:
            _, kind, path, packed, *_ = operation
            if kind in READS and packed[0] == "=" and ((all_of_state and not path) or not _is_readable(packed[1])):
                operation[3] = ["@", path]


def _is_readable(packed: Any) -> bool:
    try:
        unpack(packed)
    except PayloadError:
        return False
    return True


def _apply(hook: Hook, snap: FlowSnapshot, version: str) -> bool:
    """Let the user's method change the state and the events; returns whether it has changed the state."""
    places = list(_events_in(snap))
    events = [
        OlderEvent(doc["type"], dict(doc["value"]), None if work is None else work["step"]) for doc, work in places
    ]
    store = snap.store if isinstance(snap.store, dict) and "$model" in snap.store else None
    fields = {} if store is None else {**store["fields"], **store.get("json", {})}
    state = {name: _as_value(value) for name, value in fields.items()}
    changed = hook(OlderRun(version, state, events))
    if not isinstance(changed, OlderRun):
        raise PayloadError(f"the @migrate method returned {type(changed).__name__}: it must return the OlderRun")
    if len(changed.events) != len(places):
        raise PayloadError("the @migrate method has added or removed events: it can only change those that there are")
    packed = {name: pack(value) for name, value in changed.state.items()}
    is_changed = store is not None and packed != fields
    if store is not None and is_changed:
        snap.store = {**store, "fields": packed, "json": {}}
        _forget_undo(snap, set(fields) - set(packed))
    for (doc, work), event in zip(places, changed.events, strict=True):
        if event.type != doc["type"] or event.fields != doc["value"]:
            doc.pop("exact", None)
        doc["type"], doc["value"] = event.type, event.fields
        if work is not None and event.step is not None and event.step != work["step"]:
            for ids in snap.queues.values():
                if work["id"] in ids:
                    ids.remove(work["id"])
                    snap.queues.setdefault(event.step, []).append(work["id"])
                    break
            work["step"] = event.step
    return is_changed


def _forget_undo(snap: FlowSnapshot, gone: set[str]) -> None:
    """Forget the earlier values of fields that the state no longer has."""
    for work in snap.works:
        work["undo"] = [
            [draft[:1] if len(draft) > 1 and draft[1].partition(".")[0] in gone else draft for draft in act]
            for act in work["undo"]
        ]
        work["kept_writes"] = [draft for draft in work["kept_writes"] if draft[1].partition(".")[0] not in gone]
    snap.settled = [(number, path) for number, path in snap.settled if path.partition(".")[0] not in gone]


def _as_value(packed: Any) -> Any:
    try:
        return unpack(packed)
    except PayloadError:
        return packed


def _events_in(snap: FlowSnapshot) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Yield the stored form of each event of a snapshot, with the work that has it as its input, if any."""
    for work in snap.works:
        for doc in _find_tagged(work["input"], "$event"):
            yield doc, work
        for doc in _find_tagged([value for name, value in work.items() if name != "input"], "$event"):
            yield doc, None
    rest = [snap.batches, snap.pairs, snap.buffers, snap.prompts, snap.mailbox, snap.compensations, snap.ending]
    for doc in _find_tagged(rest, "$event"):
        yield doc, None


def _find_tagged(value: Any, tag: str) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _find_tagged(each, tag)
    elif isinstance(value, dict):
        if tag in value:
            yield value[tag]
        for each in value.values():
            yield from _find_tagged(each, tag)


def _classes_in(snap: FlowSnapshot) -> Iterator[str]:
    """Yield the names of all classes whose values a snapshot has."""
    data = [getattr(snap, name) for name in FlowSnapshot.__struct_fields__]
    for doc in _find_tagged(data, "$event"):
        yield doc["type"]
    for tag in ("$model", "$class"):
        yield from _find_tagged(data, tag)
    for work in snap.works:
        for wait in work["waiting"]:
            yield wait[1]
    for _, _, kinds in snap.buffers:
        for name, _ in kinds:
            yield name


def _find(name: str) -> type | None:
    return find_class(name) or find_class(name.partition("[")[0]) or find_class(name, Event)
