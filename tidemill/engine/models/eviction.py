"""Which models are in memory, and what to evict so that another one fits. Pure: no threads, no clock.

`Eviction` receives events (a request for a model, the end of a load, the end of a user) and returns commands: load,
unload, grant a request, refuse a request.

- All models together, including those being loaded or unloaded, never exceed the budget.
- A model with a user is never unloaded; a pinned one never at all. The least recently used one is evicted first.
- A model is loaded once, however many requests there are for it.
- Requests are served in order: a loaded model is not granted to newer requests while an older one waits for its
  memory, otherwise a busy model would never be evicted. Users that already have a model may pass, so that they can
  finish; when all of them wait for each other (deadlock), the last one is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Literal

import msgspec

from tidemill.core.limits.memory_size import format_memory

Phase = Literal["loading", "loaded", "unloading"]
Reason = Literal["evicted", "idle", "closed"]


class Footprint(msgspec.Struct, frozen=True):
    """What eviction needs to know about a model."""

    memory: int
    pinned: bool = False
    idle: float | None = None


class ModelRequest(msgspec.Struct, eq=False):
    """One request for one model. A granted model stays with its user until the user leaves."""

    model: str
    user: Hashable


class Load(msgspec.Struct, frozen=True):
    """There is memory for this model now: load it, then call `loaded` or `failed`."""

    model: str


class Unload(msgspec.Struct, frozen=True):
    """This model has no user: unload it, then call `unloaded`."""

    model: str
    why: Reason


class Grant(msgspec.Struct, frozen=True, eq=False):
    """The model is loaded, and granted to the user until it leaves. A `hit` did not have to wait for a load."""

    ask: ModelRequest
    hit: bool


class RefuseModel(msgspec.Struct, frozen=True, eq=False):
    """The request can never be granted."""

    ask: ModelRequest
    why: str


Command = Load | Unload | Grant | RefuseModel


class ModelStatus(msgspec.Struct, eq=False):
    """A model that uses memory now."""

    used_at: float
    phase: Phase = "loading"
    users: set[Hashable] = set()
    waiting: list[ModelRequest] = []


class Eviction:
    """The models in memory, their users, and waiting requests. Without a budget all models fit."""

    def __init__(self, footprints: Mapping[str, Footprint], budget: int | None) -> None:
        self.footprints = footprints
        self.budget = budget
        self.standings: dict[str, ModelStatus] = {}
        self.queue: list[ModelRequest] = []
        self._closed = False

    @property
    def taken(self) -> int:
        """Memory in use, including models being loaded or unloaded."""
        return self._memory(self.standings)

    def warm(self) -> list[str]:
        """The models that are loaded or loading."""
        return [name for name, standing in self.standings.items() if standing.phase != "unloading"]

    def fits_beside(self, model: str, others: Iterable[str]) -> bool:
        """Whether a model can be loaded together with these and all pinned ones."""
        pinned = {name for name, footprint in self.footprints.items() if footprint.pinned}
        return self.budget is None or self._memory({model, *others} | pinned) <= self.budget

    # -- events -----------------------------------------------------------------------------------

    def ask(self, ask: ModelRequest, now: float) -> list[Command]:
        """Handle a request for a model."""
        if self._closed:
            return [RefuseModel(ask, "the worker is stopping")]
        if not self.fits_beside(ask.model, own := self._held_by(ask.user)):
            return [RefuseModel(ask, self._too_much(ask.model, own))]
        self.queue.append(ask)
        return self._advance(now)

    def leave(self, user: Hashable, now: float) -> list[Command]:
        """Release everything a user has, and drop its waiting requests."""
        self.queue = [ask for ask in self.queue if ask.user is not user]
        for standing in self.standings.values():
            standing.waiting = [ask for ask in standing.waiting if ask.user is not user]
            if user in standing.users:
                standing.users.discard(user)
                standing.used_at = now
        return self._advance(now)

    def loaded(self, model: str, now: float) -> list[Command]:
        """Handle the end of a successful load."""
        standing = self.standings[model]
        standing.phase, standing.used_at = "loaded", now
        asks, standing.waiting = standing.waiting, []
        standing.users.update(ask.user for ask in asks)
        given: list[Command] = [Grant(ask, hit=False) for ask in asks]
        return given + self._advance(now)

    def failed(self, model: str, now: float) -> tuple[list[ModelRequest], list[Command]]:
        """Handle a failed load: returns the requests that waited for it; a later request tries again."""
        asks = self.standings.pop(model).waiting
        return asks, self._advance(now)

    def unloaded(self, model: str, now: float) -> list[Command]:
        """Handle the end of an unload."""
        del self.standings[model]
        return self._advance(now)

    def rest(self, now: float) -> list[Command]:
        """Unload models that have not been used for their `idle` time."""
        resting = [name for name in self.standings if self._may_go(name) and self._is_idle(name, now)]
        return [self._out(name, "idle") for name in resting]

    def close(self, now: float) -> list[Command]:
        """Load no more, and unload every model as soon as it has no user."""
        self._closed = True
        refused: list[Command] = [RefuseModel(ask, "the worker is stopping") for ask in self.queue]
        self.queue = []
        return refused + self._advance(now)

    # -- decisions --------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Command]:
        """Serve the queue from the front as far as possible."""
        commands: list[Command] = []
        still: list[ModelRequest] = []
        for ask in self.queue:
            if (still and not self._may_pass(ask)) or not self._serve(ask, now, commands):
                still.append(ask)
        self.queue = still
        if self._closed:
            commands += [self._out(name, "closed") for name in list(self.standings) if self._may_go(name, closing=True)]
        elif still and self._is_stuck():
            last = [ask for ask in still if self._held_by(ask.user)][-1]
            self.queue.remove(last)
            held = ", ".join(self._held_by(last.user))
            commands.append(
                RefuseModel(last, f"its job has {held}, and all jobs with models wait for each other's memory")
            )
        return commands

    def _may_pass(self, ask: ModelRequest) -> bool:
        """Whether a request may be served before older ones, because that takes nothing from them."""
        return self.footprints[ask.model].pinned or bool(self._held_by(ask.user))

    def _serve(self, ask: ModelRequest, now: float, commands: list[Command]) -> bool:
        standing = self.standings.get(ask.model)
        if standing is None:
            if not self._make_room(ask.model, commands):
                return False
            standing = self.standings[ask.model] = ModelStatus(now)
            commands.append(Load(ask.model))
        if standing.phase == "unloading":
            return False
        if standing.phase == "loading":
            standing.waiting.append(ask)
        else:
            standing.users.add(ask.user)
            standing.used_at = now
            commands.append(Grant(ask, hit=True))
        return True

    def _make_room(self, model: str, commands: list[Command]) -> bool:
        """Whether a model fits now; otherwise evict unused models, if that makes it fit."""
        if self.budget is None:
            return True
        missing = self.taken + self.footprints[model].memory - self.budget
        if missing <= 0:
            return True
        missing -= self._memory(name for name, it in self.standings.items() if it.phase == "unloading")
        leaving: list[str] = []
        for name in sorted(self.standings, key=lambda name: self.standings[name].used_at):
            if missing > 0 and self._may_go(name):
                leaving.append(name)
                missing -= self.footprints[name].memory
        if missing <= 0:
            commands += [self._out(name, "evicted") for name in leaving]
        return False

    def _out(self, name: str, why: Reason) -> Unload:
        self.standings[name].phase = "unloading"
        return Unload(name, why)

    def _may_go(self, name: str, *, closing: bool = False) -> bool:
        standing = self.standings[name]
        return standing.phase == "loaded" and not standing.users and (closing or not self.footprints[name].pinned)

    def _is_idle(self, name: str, now: float) -> bool:
        idle = self.footprints[name].idle
        return idle is not None and now - self.standings[name].used_at >= idle

    def _is_stuck(self) -> bool:
        """Whether all users with a model wait for another one, and no load or unload is in progress (deadlock)."""
        users = {user for standing in self.standings.values() for user in standing.users}
        moving = any(standing.phase != "loaded" for standing in self.standings.values())
        return bool(users) and not moving and users <= {ask.user for ask in self.queue}

    def _held_by(self, user: Hashable) -> list[str]:
        return [name for name, standing in self.standings.items() if user in standing.users]

    def _memory(self, names: Iterable[str]) -> int:
        return sum(self.footprints[name].memory for name in names)

    def _too_much(self, model: str, own: list[str]) -> str:
        needs = format_memory(self.footprints[model].memory)
        beside = f" beside {', '.join(own)}, which it has already" if own else ""
        return f"it needs {needs}, and the budget of {format_memory(self.budget or 0)} is too small for that{beside}"
