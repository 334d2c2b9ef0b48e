"""Dags to be simulated, and their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tidemill import current_job
from tidemill.core.retry import retry
from tidemill.dags import Dag, input_node, node, ref, sub_dag
from tidemill.engine.jobs.task import Task, TaskOptions

LASTING = retry(4, backoff="300ms", max_losses=50)


def task(function: Callable[..., Any]) -> Task[Any, Any]:
    return Task(function, function.__name__, TaskOptions(queue="default", retry=LASTING))


@task
async def number(n: int) -> dict:
    await asyncio.sleep(0.01 * n)
    return {"n": n, "list": list(range(n))}


@task
async def add(a: Any, b: Any = 0) -> dict:
    return {"n": a + b}


@task
async def square(n: int) -> int:
    await asyncio.sleep(0.02 * (n % 2))
    return n * n


@task
async def second_try(n: int) -> dict:
    if current_job().attempt == 1:
        raise RuntimeError("not the first time")
    return {"n": n}


@task
async def hopeless() -> None:
    raise ValueError("it cannot be done")


@task
async def endless() -> None:
    await asyncio.sleep(10_000)


TASKS = (number, add, square, second_try, hopeless, endless)
ONCE = retry(1, max_losses=50)


@dataclass
class DagJourney:
    """A dag with what happens around it."""

    dag: Dag
    options: dict[str, Any] = field(default_factory=dict)
    """For `simulate_dag`."""


_INNER = Dag("inner", [node("one", "number", args={"n": ref("run.x")}), node("two", "add", args={"a": ref("one.n")})])

DAG_JOURNEYS = {
    journey.dag.name: journey
    for journey in (
        DagJourney(
            Dag(
                "diamond",
                [
                    node("top", "number", args={"n": ref("run.n")}),
                    node("left", "add", args={"a": ref("top.n"), "b": 1}),
                    node("right", "second_try", args={"n": ref("top.n")}),
                    node("bottom", "add", args={"a": ref("left.n"), "b": ref("right.n")}),
                ],
                result=ref("bottom.n"),
            ),
            {"args": {"n": 3}},
        ),
        DagJourney(
            Dag(
                "mapped",
                [
                    node("list", "number", args={"n": 5}),
                    node("each", "square", map=ref("list.list"), args={"n": ref("item")}, max_concurrency=2),
                ],
                result=ref("each"),
            ),
        ),
        DagJourney(
            Dag(
                "asked",
                [
                    input_node("how_many", prompt="How many?", schema={"type": "integer"}),
                    node("some", "number", args={"n": ref("how_many")}),
                    input_node("nobody", prompt="Anybody?", timeout=1.5, default=7),
                    node("sum", "add", args={"a": ref("some.n"), "b": ref("nobody")}),
                ],
                result=ref("sum.n"),
            ),
            {"answers": {"how_many": 2}},
        ),
        DagJourney(
            Dag(
                "skipping",
                [
                    node("top", "number", args={"n": 1}),
                    node("left", "add", args={"a": ref("top.n")}, skip_if="top.n == 1"),
                    node("after", "add", args={"a": 5}, deps=["left"]),
                    sub_dag("inner", _INNER, args={"x": ref("top.n")}),
                ],
                result={"inner": ref("inner")},
            ),
        ),
        DagJourney(
            Dag(
                "tolerant",
                [
                    node("broken", "hopeless", on_failure="continue", retry=ONCE),
                    node("fine", "number", args={"n": 2}),
                    node("after", "add", args={"a": ref("fine.n")}),
                ],
                result=ref("after.n"),
            ),
        ),
        DagJourney(
            Dag(
                "failing",
                [
                    node("broken", "hopeless", retry=ONCE),
                    node("long", "endless"),
                    node("after", "add", args={"a": 1}, deps=["broken"]),
                ],
            ),
        ),
        DagJourney(
            Dag(
                "stillborn",  # It asks and ends in one turn: the arguments of a node do not fit its task.
                [input_node("who", prompt="Who?"), node("wrong", "add", args={"nonsense": ref("run.n")})],
            ),
            {"args": {"n": 1}},
        ),
        DagJourney(
            Dag(
                "cancelled",
                [node("long", "endless"), input_node("who", prompt="Who?"), node("after", "add", deps=["who"])],
            ),
            {"cancel_after": 1.3},
        ),
    )
}
