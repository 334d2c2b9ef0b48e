"""An application with work of every shape, whose payloads are sealed."""

from __future__ import annotations

import logging
from typing import Any

import structlog

from tests.support.waiting import PATIENT
from tidemill import App, current_job
from tidemill.dags import Dag, node, ref
from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, momentary
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task as plan_task

MARKER = "moorings-of-the-duke"
log = logging.getLogger("harbour")


async def tell(job: int, error: str, args: dict[str, Any]) -> str:
    return f"{error} {args}"


async def fail(text: str) -> None:
    raise ValueError(f"no berth for {text}")


async def carry(text: str) -> dict[str, str]:
    structlog.get_logger().warning("carries", what=text)
    current_job().report(0.5, f"half of {text}")
    return {"carried": text}


class Cargo(StartEvent):
    text: str


class Loaded(Event):
    text: str


class Said(HumanResponseEvent):
    text: str


class Voyage(Workflow):
    @step
    async def load(self, ctx: Context, ev: Cargo) -> Loaded:
        await ctx.store.set("hold", ev.text)
        log.warning("loads %s", ev.text)
        ctx.write_event_to_stream(Loaded(text=f"shown {ev.text}"))
        return Loaded(text=ev.text)

    @step
    async def sail(self, ctx: Context, ev: Loaded) -> StopEvent:
        asked = InputRequiredEvent(prefix=f"where to with {ev.text}?")
        said = await ctx.wait_for_event(Said, waiter_event=asked, timeout=3600)
        return StopEvent(result=f"{ev.text} to {said.text} with {await ctx.store.get('hold')}")


class Wreck(Workflow):
    @step
    async def strike(self, ev: Cargo) -> StopEvent:
        raise ValueError(f"lost {ev.text}")


class Sort(Plan, eligibility="sort"):
    @plan_task
    async def sort(self, message: Any) -> None:
        raise ValueError(f"cannot read {message.value['text']}")


letters = Stream("letters", plans=[Sort], sources=[LogSource("letters", eligibilities={"sort"})])


class Follow:
    def on_event(self, state: Any, event: Any) -> None:
        state.setdefault("seen", []).append({"id": event.id, "at": event.at, "text": event["text"]})


def harbour(database_url: str, **settings: Any) -> App:
    given: dict[str, Any] = {**PATIENT, "codec": "encrypt", **settings}
    app = App("harbour", database_url=database_url, grace_seconds=5, **given)
    told = app.task(tell)
    app.task(on_failure=told, retry=app.retry(max_attempts=2, backoff="10ms"))(fail)
    carried = app.task(carry)
    app.workflow(Voyage, timeout=None)
    app.workflow(Wreck)
    first = node("first", "carry", args={"text": ref("$.run.text")})
    app.dag(Dag("freight", nodes=[first, node("second", "carry", args={"text": ref("first.carried")}, deps=["first"])]))
    app.stream(letters)
    seen = momentary("seen", of=lambda state: state.seen, evidence=lambda one: one["text"])
    app.monitor(Monitor("tides", source=LogSource("tides"), entity=lambda event: "quay", fold=Follow, triggers=[seen]))
    app.schedule("nightly", carried.call(text=MARKER), cron="0 3 * * *")
    return app
