"""Random workflows, as data: drawn by hypothesis, and built for any implementation of LlamaIndex Workflows.

A program is a chain of stages. Each stage takes an event with a number `n` and gives the next stage one, over one or
several steps: a plain step, a batch that is joined, events that are sent and collected, a pair of events, a question
to a person, a step that fails and is retried or rescued, a workflow in a workflow. What its steps write, read and show
does not depend on the order of steps that run at the same time, so that any correct implementation gives the same.

What deviates from LlamaIndex on purpose is drawn only for the comparison of runs in memory with durable ones (`free`):
`test_deviations.py` has a program for each deviation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hypothesis import strategies as st

Op = Literal["set", "add", "show", "wait", "own", "list", "rest", "mark", "stray"]

#: What may be repeated without a trace: LlamaIndex runs a step that has waited again from its beginning.
REPEATABLE: tuple[Op, ...] = ("set", "rest")
ANY: tuple[Op, ...] = ("set", "add", "show", "own", "list", "rest", "mark", "stray")

Body = tuple[Op, ...]


@dataclass(frozen=True)
class Plain:
    """One step, which may be given its own event again a few times before it goes on."""

    body: Body
    rounds: int = 0
    threaded: bool = False


@dataclass(frozen=True)
class Batch:
    """A step that returns a list, workers for its events, and a step that takes the list of their results."""

    count: int
    body: Body
    workers: int = 4
    drops: bool = False
    take: int | None = None
    inner: Batch | None = None
    two_joins: bool = False


@dataclass(frozen=True)
class Sent:
    """A step that sends events, workers, and a step that collects what they return."""

    count: int
    body: Body
    workers: int = 4


@dataclass(frozen=True)
class Pair:
    """A step that sends two events, and a step that takes both, each after a step of its own."""

    left: Body
    right: Body


@dataclass(frozen=True)
class Asked:
    """A step that returns a question to a person, and a step that takes the answer."""

    body: Body


@dataclass(frozen=True)
class Failing:
    """A step that fails so many times, is attempted so many times, and may be rescued by an error handler."""

    failures: int
    attempts: int
    rescued: bool
    body: Body
    late: bool = False
    """It fails after its operations, and not before them."""


@dataclass(frozen=True)
class Subclassed:
    """A step that returns one of several subclasses, and a step that accepts them all."""

    body: Body


@dataclass(frozen=True)
class Nested:
    """A step that runs another workflow and goes on with its result."""

    body: Body
    inner: tuple[Stage, ...]


Stage = Plain | Batch | Sent | Pair | Asked | Failing | Subclassed | Nested


@dataclass(frozen=True)
class Program:
    """A workflow, and the number that it begins with."""

    stages: tuple[Stage, ...]
    n: int
    typed: bool = False


@st.composite
def bodies(draw: st.DrawFn, *, free: bool = False) -> Body:
    """Operations, with waits for a person between them now and then; if `free`, whatever comes before the waits."""
    body: list[Op] = []
    if draw(st.integers(0, 1 if free else 3)) == 0:
        for _ in range(draw(st.integers(1, 3 if free else 2))):
            body += draw(st.lists(st.sampled_from(ANY if free else REPEATABLE), max_size=3))
            body.append("wait")
    body += draw(st.lists(st.sampled_from(ANY), max_size=4))
    return tuple(body)


def quick_bodies() -> st.SearchStrategy[Body]:
    """Operations without a wait."""
    return st.lists(st.sampled_from(ANY), max_size=4).map(tuple)


@st.composite
def plains(draw: st.DrawFn, *, free: bool) -> Plain:
    if draw(st.integers(0, 4)) == 0:
        return Plain((), threaded=True)
    return Plain(draw(bodies(free=free)), rounds=draw(st.integers(0, 2)))


@st.composite
def batches(draw: st.DrawFn, *, free: bool) -> Batch:
    inner = None
    if draw(st.integers(0, 3)) == 0:
        inner = Batch(draw(st.integers(0, 3)), draw(quick_bodies()), drops=draw(st.booleans()))
    take = draw(st.none() | st.integers(1, 4))
    return Batch(
        count=draw(st.integers(0, 5)),
        body=draw(bodies(free=free)),
        workers=draw(st.sampled_from([1, 2, 4])),
        drops=draw(st.booleans()),
        take=take,
        inner=inner,
        # What runs on after a join has taken what it needs is waited for by the other one.
        two_joins=take is not None or draw(st.booleans()),
    )


def failings(*, free: bool) -> st.SearchStrategy[Failing]:
    return st.builds(
        Failing,
        failures=st.integers(0, 3),
        attempts=st.integers(1, 3),
        rescued=st.booleans(),
        body=bodies(free=True) if free else quick_bodies(),
        late=st.booleans() if free else st.just(False),
    )


def simple_stages(*, free: bool) -> st.SearchStrategy[Stage]:
    body = bodies(free=free)
    return st.one_of(
        plains(free=free),
        batches(free=free),
        st.builds(Sent, count=st.integers(1, 5), body=body, workers=st.sampled_from([1, 2, 4])),
        st.builds(Pair, left=body, right=body),
        st.builds(Asked, body=body),
        failings(free=free),
        st.builds(Subclassed, body=body),
    )


def nested_stages(*, free: bool) -> st.SearchStrategy[Nested]:
    inner = st.one_of(
        st.builds(Plain, body=quick_bodies(), rounds=st.integers(0, 2)),
        st.builds(Batch, count=st.integers(0, 4), body=quick_bodies(), drops=st.booleans()),
        failings(free=False),
    )
    return st.builds(Nested, body=bodies(free=free), inner=st.lists(inner, min_size=1, max_size=2).map(tuple))


def programs(*, free: bool = False) -> st.SearchStrategy[Program]:
    """Draw a program; if `free`, one in which a step also does things before it waits or fails."""
    stages = st.lists(simple_stages(free=free) | nested_stages(free=free), min_size=1, max_size=4).map(tuple)
    return st.builds(Program, stages=stages, n=st.integers(0, 9), typed=st.booleans())
