"""`tidemill.simulate`: an application's work in processes that are killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.pipelines import Pipeline
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task
from tidemill.testing.kit import TestKit

pytest_plugins = ["tidemill.testing.plugin"]

app = App("crashing")
folder: Path


class Order(StartEvent):
    number: int


class Paid(Event):
    number: int


@app.task(retry=app.retry(3, max_losses=50))
async def charge(number: int) -> int:
    return number * 10


@app.workflow
class Checkout(Workflow[Order, int]):
    @step
    async def pay(self, order: Order) -> Paid:
        return Paid(number=order.number + 1)

    @step
    async def end(self, paid: Paid) -> StopEvent:
        return StopEvent(result=paid.number + 1)


class Reviews(Plan, eligibility="reviews"):
    @task
    async def keep(self, message: Any) -> None:
        (folder / f"review-{message.value['number']}").touch()


app.stream(Stream("reviews", plans=[Reviews], sources=[LogSource("reviews", eligibilities={"reviews"})]))


@pytest.mark.parametrize("seed", range(3))
def test_jobs_and_runs_end_although_every_process_is_killed(tidemill: TestKit, seed: int) -> None:
    tidemill.use(app)
    for number in range(20):
        app.enqueue_sync(charge.call(number=number))
        app.start_sync(Checkout, Order(number=number))
    tidemill.simulate(seed=seed, crashes=3)
    jobs, runs = tidemill.enqueued(charge), tidemill.started(Checkout)
    assert sorted(job.result for job in jobs) == [number * 10 for number in range(20)]
    assert sorted(run.result for run in runs) == [number + 2 for number in range(20)]


def test_messages_and_states_are_there_although_processes_are_killed(tidemill: TestKit, tmp_path: Path) -> None:
    global folder
    folder = tmp_path
    pages = Pipeline("pages", root=tmp_path)

    @pages.stage(input="in/{name}.txt", output="out/{name}.txt")
    async def page(entity: Any, text: str) -> str:
        return text.upper()

    shop = App("shop")
    shop.pipeline(pages)
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / f"{name}.txt").write_text(name)
    tidemill.use(app)
    tidemill.use(shop)
    for number in range(10):
        app.publish_sync("reviews", {"number": number})
    tidemill.simulate(app, seed=1, crashes=2, until=lambda: len(list(tmp_path.glob("review-*"))) == 10)
    tidemill.simulate(shop, seed=1, crashes=2, until=lambda: len(list(tmp_path.glob("out/*.txt"))) == 3)
    assert [(tmp_path / "out" / f"{name}.txt").read_text() for name in "abc"] == ["A", "B", "C"]


def test_processes_are_not_killed_beside_roles_that_run_here(tidemill: TestKit) -> None:
    tidemill.use(app)
    with tidemill.running(), pytest.raises(ConfigError, match="outside of running"):
        tidemill.simulate()


def test_a_condition_that_would_have_to_be_awaited_is_refused(tidemill: TestKit) -> None:
    async def is_over() -> bool:
        return False

    tidemill.use(app)
    with pytest.raises(ConfigError, match="a condition is plain code, and this one is async: it would always be true"):
        tidemill.run_until(is_over)  # pyright: ignore[reportUnusedCoroutine]
    with pytest.raises(ConfigError, match="a condition is plain code"):
        tidemill.simulate(until=is_over)
