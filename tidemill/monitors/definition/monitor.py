"""What users declare: a monitor, its fold and its triggers.

class Machine:                                       # the fold: plain Python, no I/O, no clock
    version = "1"                                    # a new version is built in the background, then replaces it
    window = 5000                                    # how many events a rebuild from the log reads

    def on_event(self, state, event): ...            # for each event, in the order in which they happened
    def on_tick(self, state, now): ...               # once per tick that brought events

watch = Monitor("machines", source=..., entity=lambda event: event["machine"], fold=Machine, triggers=[...])
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Any, Literal, Protocol

from tidemill.core.check_given import check_function, check_kind
from tidemill.core.duration import Duration, parse_duration, parse_rate
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.core.limits.memory_size import parse_memory
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.application.middleware import surrounded
from tidemill.monitors.definition.channels import Channel, channel_name, check_channel
from tidemill.monitors.definition.event import Event
from tidemill.monitors.definition.triggers import Momentary, Trigger
from tidemill.monitors.reducer.state import AttributeDict, read_state
from tidemill.sources.base import PageReader, PartitionReader, Source

DEFAULT_WINDOW = 5000

#: What the methods of a fold are called with.
TAKES = {"on_event": ("state", "event"), "on_tick": ("state", "now"), "explain": ("state",), "start": ()}


class BeginCall(Protocol):
    """Is called before each call of a monitor's own code, with its place and event. May refuse it, by raising."""

    def __call__(self, place: str, event: str = "", /) -> None: ...


def no_note(place: str, event: str = "", /) -> None:
    """Nothing notes the calls of a backtest."""


class Fold:
    """A user's fold, with defaults for its optional parts."""

    def __init__(self, given: Any) -> None:
        self._fold = given() if isinstance(given, type) else given
        if not callable(getattr(self._fold, "on_event", None)):
            raise ConfigError(f"{given!r} is not a fold: it needs a method on_event(self, state, event)")
        for method, takes in TAKES.items():
            if (found := getattr(self._fold, method, None)) is not None:
                where = f"fold {type(self._fold).__name__}"
                check_function(where, found, *takes)
        self.version = str(getattr(self._fold, "version", "1"))
        self.window = int(getattr(self._fold, "window", DEFAULT_WINDOW))
        if self.window < 1:
            raise ConfigError(f"a window of {self.window} events holds nothing")
        self._kind: type | None = getattr(self._fold, "State", None)
        self._on_tick = getattr(self._fold, "on_tick", None)
        self._explain = getattr(self._fold, "explain", None)
        self._begin: BeginCall = no_note
        self._on_event: Callable[..., Any] = self._fold.on_event
        self.is_surrounded = False
        """Whether it needs the lifespan of its application."""

    def surround(self, monitor: str, lifespan: Lifespan) -> None:
        """Call `on_event` within the middleware of the application that declares the monitor."""
        self._on_event = surrounded(lifespan, "fold", monitor, self._fold.on_event, _event_entity)
        self.is_surrounded = self._on_event != self._fold.on_event

    def noting(self, begin: BeginCall) -> Fold:
        """The same fold, with `begin` called before each of its calls."""
        noting = copy(self)
        noting._begin = begin
        return noting

    def start(self) -> Any:
        """The state of an entity without events."""
        start = getattr(self._fold, "start", None)
        if start is not None:
            self._begin("fold.start")
            return start()
        return AttributeDict() if self._kind is None else self._kind()

    def read(self, data: bytes) -> Any:
        return read_state(self._kind, data)

    def on_event(self, state: Any, event: Any) -> Any:
        """The state after an event: the same object, unless the fold returns another one."""
        self._begin("fold", event.id)
        changed = self._on_event(state, event)
        return state if changed is None else changed

    def on_tick(self, state: Any, now: float) -> float | None:
        """Call the fold once per tick; it may return when it wants to be called again."""
        if self._on_tick is None:
            return None
        self._begin("fold.on_tick")
        return self._on_tick(state, now)

    def explain(self, state: Any) -> Any:
        """The fold's explanation of a state, stored with alerts."""
        if self._explain is None:
            return None
        self._begin("fold.explain")
        return self._explain(state)


def _event_entity(arguments: Mapping[str, Any]) -> str:
    return next((each.entity for each in arguments.values() if isinstance(each, Event)), "")


class Monitor:
    """Follows the events of a source per entity, and raises alerts when its triggers say so.

    entity          a function from an event to its entity; None for events about no entity
    roster          "open" follows all entities; "listed" only those added with `tidemill monitor roster add`
    backfill        how far back to read when an entity is added, if the source can
    backfill_rate   how many pages per second a backfill may read
    idle, idle_max  the pause after a poll with events, and the longest pause after polls without; by default `idle` is
                    0.5 s for an API and 0.1 s for what is nearer
    failure_max     the longest pause after failed polls; five failures in a row make the monitor UNHEALTHY
    keep            how long events stay in the log
    memory          how much memory the cache of states may use
    notify          channels that receive notices of alerts
    """

    def __init__(
        self,
        name: str,
        *,
        source: Source | PageReader | PartitionReader,
        entity: Callable[[Any], Any],
        fold: Any,
        triggers: Iterable[Trigger] = (),
        roster: Literal["open", "listed"] = "open",
        backfill: Duration = "24h",
        backfill_rate: str | float = "5/s",
        idle: Duration | None = None,
        idle_max: Duration = 5,
        failure_max: Duration = 30,
        keep: Duration = "90d",
        memory: str | int = "128 MB",
        notify: Sequence[Channel] = (),
    ) -> None:
        self.name = check_name("monitor", name)
        if not isinstance(source, Source | PageReader | PartitionReader):
            raise ConfigError(f"monitor {name}: {source!r} is not a source: take one of tidemill.sources")
        self.source = source
        check_function(f"monitor {name}: entity=", entity, "event")
        self.entity = entity
        self.fold = Fold(fold)
        self.triggers = tuple(triggers)
        for trigger in self.triggers:
            check_kind(f"monitor {name}: triggers=", trigger, Trigger, "what sustained, momentary and absent return")
        if roster not in ("open", "listed"):
            raise ConfigError(f"monitor {name}: roster {roster!r} is not one of open, listed")
        self.roster = roster
        self.backfill = parse_duration(backfill, what="backfill")
        self.backfill_rate = parse_rate(backfill_rate, what="backfill_rate")
        self.idle = None if idle is None else parse_duration(idle, what="idle")
        self.idle_max = max(self.idle or 0.0, parse_duration(idle_max, what="idle_max"))
        self.failure_max = parse_duration(failure_max, what="failure_max")
        self.keep = parse_duration(keep, what="keep")
        self.memory = parse_memory(memory, what="memory")
        self.notify = tuple(notify)
        for channel in self.notify:
            check_kind(f"monitor {name}: notify=", channel, Channel, "channels, such as Email(to=..., sender=...)")
            check_channel(f"monitor {name}", channel)
        _check_names(name, "trigger", [trigger.name for trigger in self.triggers])
        _check_names(name, "channel", [channel_name(channel) for channel in self.notify])

    def __repr__(self) -> str:
        return f"<Monitor {self.name}: {len(self.triggers)} triggers>"

    def entity_of(self, data: Any) -> str | None:
        """The entity of an event, as text."""
        found = self.entity(data)
        return None if found is None or found == "" else str(found)

    @property
    def momentary(self) -> tuple[Momentary, ...]:
        return tuple(trigger for trigger in self.triggers if isinstance(trigger, Momentary))


def _check_names(monitor: str, what: str, names: list[str]) -> None:
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ConfigError(f"monitor {monitor}: two {what}s are called {min(twice)!r}")
