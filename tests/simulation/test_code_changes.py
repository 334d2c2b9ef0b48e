"""The code changes under runs, with crashes, pauses and stops: every run ends as if it had always been the new one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.simulation.seeds import seeds
from tidemill.core.codec import decode
from tidemill.core.errors import PayloadError
from tidemill.core.ticks import Received, Started
from tidemill.engine.simulation.simulation import Faults, Simulation
from tidemill.flows import Context, Event, OlderRun, StartEvent, StopEvent, Workflow, migrate, step
from tidemill.flows.definition.declared import declared
from tidemill.flows.encoding.events import encode_event
from tidemill.flows.encoding.journal import encode_tick
from tidemill.flows.encoding.values import plain_result
from tidemill.flows.runner.durable import FlowKind
from tidemill.flows.runner.restore import definition_of, restore

RUNS = 4
FAULTS = Faults(crashes=3, pauses=1, cuts=1, stops=2, slow=0.01, lost=0.2, repeated=0.2, within=200)


class Item(Event):
    n: int


class Weighed(Event):
    n: int


class Go(Event):
    word: str


class Before(Workflow):
    @step
    async def spread(self, ctx: Context, ev: StartEvent) -> list[Item]:
        await ctx.store.set("grams", 0)
        return [Item(n=n) for n in range(3)]

    @step
    async def weigh(self, ctx: Context, ev: Item) -> Weighed:
        async with ctx.store.edit_state() as state:
            state.grams += ev.n
        return Weighed(n=ev.n)

    @step
    async def collect(self, ctx: Context, ev: list[Weighed]) -> StopEvent:
        first = await ctx.wait_for_event(Go)
        await ctx.store.set("first", first.word)
        second = await ctx.wait_for_event(Go)
        return StopEvent(result=[await ctx.store.get("grams"), first.word, second.word, len(ev)])


class After(Workflow):
    """Another name for a step, another field for what it weighs, and a step that also takes what is weighed."""

    @step
    async def spread(self, ctx: Context, ev: StartEvent) -> list[Item]:
        await ctx.store.set("milligrams", 0)
        return [Item(n=n) for n in range(3)]

    @step
    async def weigh(self, ctx: Context, ev: Item) -> Weighed:
        async with ctx.store.edit_state() as state:
            state.milligrams += ev.n * 1000
        return Weighed(n=ev.n)

    @step
    async def watch(self, ev: Item) -> None:
        """A step more."""

    @step(renamed_from="collect")
    async def gather(self, ctx: Context, ev: list[Weighed]) -> StopEvent:
        first = await ctx.wait_for_event(Go)
        await ctx.store.set("first", first.word)
        second = await ctx.wait_for_event(Go)
        grams = (await ctx.store.get("milligrams")) // 1000
        return StopEvent(result=[grams, first.word, second.word, len(ev)])

    @migrate
    def to_milligrams(self, run: OlderRun) -> OlderRun:
        if "grams" in run.state:
            run.state["milligrams"] = run.state.pop("grams") * 1000
        return run


@pytest.mark.parametrize("seed", seeds(6, 25))
def test_runs_end_well_though_their_processes_are_replaced_by_a_newer_version(seed: int) -> None:
    before, after = Before(timeout=None), After(timeout=None)
    begun: list[str] = []

    async def no_child(*_: Any) -> None:
        raise AssertionError("these workflows start no child")

    def kinds(runs: Any) -> dict[str, FlowKind]:
        workflow = before if len(begun) < 2 else after  # The first two processes, and those that come after them.
        begun.append(type(workflow).__name__)
        return {"Parcel": FlowKind("Parcel", workflow, no_child)}

    def send(number: int, tick: bytes) -> None:
        simulation.model.send(number, tick)

    simulation = Simulation(seed, kinds, faults=FAULTS, owners=2, workers=0)
    data, version = encode_event(StartEvent()), declared(before).topology.version
    numbers = [simulation.start(workflow="Parcel", version=version, input=data) for _ in range(RUNS)]
    for moment, word in enumerate(("one", "two")):
        for number in numbers:
            tick = encode_tick(Received(float(moment), Go(word=word)))
            simulation.world.later(5.0 * (moment + 1) + number, partial(send, number, tick))
    simulation.world.later(4.0, simulation._stop)  # A deployment begins, whatever else happens.
    try:
        simulation.go()
        for number in numbers:
            row = simulation.model.runs[number]
            assert row.state == "succeeded", (seed, row.note)
            assert plain_result(decode(row.result or b"null")) == [3, "one", "two", 3], seed
    finally:
        simulation.close()
    assert "After" in begun, "no process of the newer version was started"


def _no_state(run: OlderRun) -> None:
    run.state = None  # pyright: ignore[reportAttributeAccessIssue]


def _no_events(run: OlderRun) -> None:
    run.events = None  # pyright: ignore[reportAttributeAccessIssue]


def _no_class(run: OlderRun) -> None:
    for event in run.events:
        event.type = None  # pyright: ignore[reportAttributeAccessIssue]


def _live_object(run: OlderRun) -> None:
    for event in run.events:
        event.fields["n"] = object()


@pytest.mark.parametrize("spoil", [_no_state, _no_events, _no_class, _live_object])
def test_a_migration_that_leaves_what_cannot_be_read_says_so(spoil: Any) -> None:
    class Spoiled(Before):
        @step
        async def note(self, ev: Go) -> None: ...

        @migrate
        def spoil(self, run: OlderRun) -> OlderRun:
            spoil(run)
            return run

    before = Before()
    version = declared(before).topology.version
    started = encode_tick(Started(0.0, StartEvent(), version=version))
    with pytest.raises(
        PayloadError, match=r"could not be read by this version: (Attribute|Type)Error.*tidemill runs migrate"
    ):
        restore(Spoiled(), None, [started], version=version, definition=definition_of(before))
