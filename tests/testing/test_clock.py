"""The clock of a test moves whatever waits for time: jobs, runs, alerts and notices."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Hours, Monitor, Slack, absent, sustained
from tidemill.ops.monitors.alerts import AckAlerts, ack_alerts
from tidemill.sources import HttpSource
from tidemill.sources.base import RecordPage
from tidemill.sources.delivery import Delivery
from tidemill.testing.kit import TestKit

pytest_plugins = ["tidemill.testing.plugin"]

app = App("clock")


@app.task(retry=app.retry(3, backoff="1h", jitter=0))
async def save(text: str) -> str:
    if text == "broken":
        raise ValueError("not yet")
    return text


class Answer(Event):
    pass


@app.task(concurrency_key="{shop}")
async def close(shop: str) -> str:
    return shop


@app.workflow(timeout=3 * 3600)
class Patient(Workflow):
    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.sleep(3600)
        await ctx.wait_for_event(Answer)
        return StopEvent(result="answered")


class Door:
    def on_event(self, state: Any, event: Any) -> None:
        state.open_since = event.at if event["open"] else None


doors = app.monitor(
    Monitor(
        "doors",
        source=HttpSource("https://doors.example.org/events", since="from"),
        entity=lambda event: event["door"],
        fold=Door,
        triggers=[
            sustained("open", when=lambda s, now: s.open_since is not None, realert="6h"),
            absent("silent", after="1h", hours=Hours("Mon-Sun 08:00-16:00")),
        ],
        notify=[Slack(url="https://hooks.example.org/T0", digest="30m", triggers=("open",))],
    )
)


def test_delays_debounces_retries_and_deadlines_of_jobs_pass_with_the_clock(tidemill: TestKit) -> None:
    tidemill.use(app)
    with tidemill.running():
        app.enqueue_sync(save.call(text="later"), delay="2h")
        for number in range(3):
            app.enqueue_sync(save.call(text=f"edit {number}"), unique_key="page", debounce="10m")
        app.enqueue_sync(save.call(text="broken"))
        tidemill.advance("9m")
        assert [job.state for job in tidemill.enqueued(save)] == ["ready", "ready", "ready"]
        tidemill.advance("2m")
        assert tidemill.enqueued(save, text="edit 2")[0].state == "succeeded"
        tidemill.advance("2h")
        assert tidemill.enqueued(save, text="later")[0].state == "succeeded"
        tidemill.advance("3h")
        assert tidemill.enqueued(save, text="broken")[0].attempt == 3


def test_delayed_jobs_with_a_concurrency_key_have_run_when_the_clock_has_moved_past_them(tidemill: TestKit) -> None:
    tidemill.use(app)
    with tidemill.running():
        for turn in range(5):
            jobs = [app.enqueue_sync(close.call(shop=f"shop {turn}"), delay="1s") for _ in range(3)]
            tidemill.advance("2s")
            ended = [job.id for job in tidemill.enqueued(close, shop=f"shop {turn}") if job.state == "succeeded"]
            assert sorted(ended) == sorted(job.id for job in jobs)


async def test_sleeps_and_timeouts_of_runs_pass_with_the_clock(tidemill: TestKit) -> None:
    tidemill.use(app)
    with tidemill.running():
        await app.start(Patient)
        tidemill.advance("2h")
        tidemill.started(Patient, state="running")
        tidemill.advance("2h")
        tidemill.started(Patient, state="timed_out")


async def test_an_event_that_is_fed_after_the_clock_has_moved_is_not_of_a_tick_from_before(tidemill: TestKit) -> None:
    reading, fed, lines = threading.Event(), threading.Event(), list[bytes]()

    class SlowReader:
        overlap = overlap_most = 0.0
        idle = 0.01

        async def pages(self, since: float | None, token: str | None, now: float) -> AsyncIterator[RecordPage]:
            await asyncio.to_thread(hold_up)
            offset = int(token or 0)
            if len(lines) > offset:
                yield RecordPage([Delivery(line, 0) for line in lines[offset:]], token=str(len(lines)))

        async def close(self) -> None: ...

    def hold_up() -> None:
        if not fed.is_set():
            reading.set()
            fed.wait(0.5)

    slow = App("slow doors")
    triggers = [absent("silent", after="1h", hours=Hours("Mon-Sun 08:00-16:00"))]
    slow.monitor(Monitor("slow", source=SlowReader(), entity=lambda e: e["door"], fold=Door, triggers=triggers))
    tidemill.use(slow)
    morning = tidemill.now().replace(hour=6, minute=0, second=0)
    tidemill.advance((morning - tidemill.now()).total_seconds() % 86_400)
    with tidemill.running():
        assert await asyncio.to_thread(reading.wait, 30)
        tidemill.advance("3h")
        lines.append(msgspec.json.encode({"id": 1, "door": "gate", "open": True, "at": tidemill.now().timestamp()}))
        fed.set()
        tidemill.advance("2h")
        tidemill.alerts("silent", entity="gate", within="10s")


async def test_alerts_open_again_digests_close_and_hours_pass_with_the_clock(tidemill: TestKit) -> None:
    tidemill.use(app)
    sent = tidemill.catch_notices(doors)
    night = tidemill.now().replace(hour=22, minute=0, second=0)
    tidemill.advance((night - tidemill.now()).total_seconds() % 86_400)
    began = tidemill.now().timestamp()
    tidemill.feed(doors, [{"id": 1, "door": "gate", "open": True, "at": began}])
    with tidemill.running():
        first = tidemill.alerts("open", entity="gate", within="30s")[0]
        tidemill.advance("25m")
        assert sent == [], "the digest is not over"
        tidemill.advance("10m")
        assert len(tidemill.run_until(lambda: sent)) == 1
        await app.do(ack_alerts, AckAlerts(ids=[first.id]))
        tidemill.advance("7h")
        assert len(tidemill.alerts("open", entity="gate")) == 2
        with pytest.raises(AssertionError, match="silent has opened no alert"):  # Doors may be silent at night.
            tidemill.alerts("silent")
        tidemill.advance("4h")
        tidemill.feed(doors, [{"id": 2, "door": "gate", "open": True, "at": tidemill.now().timestamp()}])
        tidemill.advance("2h")
        tidemill.alerts("silent", entity="gate", within="60s")
