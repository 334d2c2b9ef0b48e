"""The declarations of a workflow as data: what a later version of the application needs to read runs of this one.

    data = encode_topology(workflow_topology, events, state)
    older = OlderVersion(data)
    with older.reading():                       stored events and values have stand-ins for their classes
        ...

A run worker stores them once per version. The classes of an older version may be gone or may have changed: events and
models of it are read as stand-ins, which have the names and the base classes of the originals and any values.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.errors import PayloadError
from tidemill.flows.definition.collect import Collect, Take
from tidemill.flows.definition.events import Event
from tidemill.flows.definition.signature import StepRole, StepSpec
from tidemill.flows.definition.topology import Topology, taken_of_batch
from tidemill.flows.encoding.classes import STANDS_IN, find_class, older_classes, qualified_name
from tidemill.flows.encoding.dict_like import DictLikeModel, DictState
from tidemill.flows.encoding.events import allowed_events
from tidemill.flows.encoding.values import pack, unpack

_OWN = "tidemill."


class StoredStep(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the reducer needs to know of a step; classes by name."""

    name: str
    accepts: list[str]
    returns: list[str] = []
    bare: list[str] = []
    listed: list[str] = []
    collect: list[tuple[str, str]] = []
    collection: tuple[str, list[str]] | None = None
    take: int | None = None
    num_workers: int = 4
    timeout: float | None = None
    queue: str | None = None
    subclasses: bool = False
    role: StepRole = "step"
    for_steps: list[str] | None = None
    max_recoveries: int = 1
    renamed_from: list[str] = []


class StoredTopology(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version of a workflow: its steps, its event classes with their bases, and the state of a new run."""

    steps: list[StoredStep]
    classes: dict[str, list[str]]
    state: Any = None
    timeout: float | None = None


def encode_topology(topology: Topology, events: Iterable[type], state: Any) -> bytes:
    """Encode the steps of a workflow, the event classes of the application, and the state of a new run."""
    known = {cls for spec in topology.steps.values() for cls in (*spec.accepted_events, *spec.return_types)}
    classes: dict[str, list[str]] = {}
    for cls in (*known, *events):
        for each in cls.__mro__:
            if issubclass(each, Event) and each is not Event:
                bases = [qualified_name(base) for base in each.__bases__ if issubclass(base, Event)]
                classes.setdefault(qualified_name(each), bases)
    steps = [_stored(spec) for spec in topology.steps.values()]
    try:
        first = pack(state)
    except PayloadError:  # A default of it is a live object, which is not stored.
        first = None
    return encode(StoredTopology(steps, classes, first, topology.durable_timeout))


def _stored(spec: StepSpec) -> StoredStep:
    collection = spec.collection_param
    return StoredStep(
        spec.name,
        _names(spec.accepted_events),
        _names(spec.return_types),
        _names(spec.bare_return_types),
        _names(spec.listed_return_types),
        [(name, qualified_name(cls)) for name, cls in spec.collect_params],
        None if collection is None else (collection[0], _names(collection[1])),
        taken_of_batch(spec),
        spec.num_workers,
        spec.timeout,
        spec.queue,
        spec.accept_event_subclasses,
        spec.role,
        None if spec.catch_error_for_steps is None else list(spec.catch_error_for_steps),
        spec.catch_error_max_recoveries,
        list(spec.renamed_from),
    )


def _names(classes: Iterable[type]) -> list[str]:
    return [qualified_name(cls) for cls in classes]


class OlderVersion:
    """Another version of a workflow, from what its run workers have stored."""

    def __init__(self, data: bytes) -> None:
        self._stored: StoredTopology = decode(data, StoredTopology)
        self._events: dict[str, type] = {}
        self._models: dict[str, type] = {}
        self.topology = Topology({each.name: self._spec(each) for each in self._stored.steps}, self._stored.timeout)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read what runs of this version have stored, with stand-ins for its classes."""
        events, older = allowed_events.set(self), older_classes.set(self)
        try:
            yield
        finally:
            allowed_events.reset(events)
            older_classes.reset(older)

    def first_state(self) -> Any:
        """Return the state of a new run."""
        if self._stored.state is None:
            return DictState()
        with self.reading():
            return unpack(self._stored.state)

    def resolve(self, name: str) -> Any:
        """Return the event class of this name: one of Tidemill, or a stand-in."""
        known = self._events.get(name)
        if known is None:
            known = self._events[name] = self._own(name) or self._stand_in(name, self._bases(name))
        return known

    def model_class(self, name: str) -> type:
        """Return the model of this name: one of Tidemill, or a stand-in."""
        known = self._models.get(name)
        if known is None:
            known = self._models[name] = self._own(name) or self._stand_in(name, (DictLikeModel,))
        return known

    def _own(self, name: str) -> type | None:
        return find_class(name) if name.startswith(_OWN) else None

    def _bases(self, name: str) -> tuple[type, ...]:
        if name in self._stored.classes:
            return tuple(self.resolve(base) for base in self._stored.classes[name]) or (Event,)
        # It was defined after its version was stored: what it is now says best what kind of event it was.
        mro = (find_class(name) or Event).__mro__
        return (
            next((each for each in mro if qualified_name(each).startswith(_OWN) and issubclass(each, Event)), Event),
        )

    def _stand_in(self, name: str, bases: tuple[type, ...]) -> type:
        module, _, bare = name.rpartition(".")
        body = {"__module__": module, "__qualname__": bare, STANDS_IN: True}
        return types.new_class(bare, bases, exec_body=lambda names: names.update(body))

    def _spec(self, each: StoredStep) -> StepSpec:
        def found(names: Iterable[str]) -> tuple[Any, ...]:
            return tuple(self.resolve(name) for name in names)

        take = None if each.take is None else Collect(Take(each.take))
        return StepSpec(
            name=each.name,
            function=_not_here,
            accepted_events=found(each.accepts),
            event_name="ev",
            collect_params=tuple((name, self.resolve(cls)) for name, cls in each.collect),
            collection_param=None if each.collection is None else (each.collection[0], found(each.collection[1])),
            collection_policy=take,
            return_types=found(each.returns),
            bare_return_types=found(each.bare),
            listed_return_types=found(each.listed),
            num_workers=each.num_workers,
            timeout=each.timeout,
            queue=each.queue,
            accept_event_subclasses=each.subclasses,
            role=each.role,
            catch_error_for_steps=None if each.for_steps is None else tuple(each.for_steps),
            catch_error_max_recoveries=each.max_recoveries,
            renamed_from=tuple(each.renamed_from),
        )


def _not_here() -> None:
    raise NotImplementedError("the code of an older version is not in this process")
