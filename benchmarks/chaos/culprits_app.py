"""The application of the culprits of the `chaos` suite: innocent work, and work that misbehaves."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from tidemill import App
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task

app = App("culprits")


@app.task
async def innocent(seconds: float = 0.02) -> None:
    await asyncio.sleep(seconds)


@app.task
async def poison() -> None:
    os._exit(3)


class Innocent(Workflow):
    @step
    async def act(self, ev: StartEvent) -> StopEvent:
        await asyncio.sleep(0.02)
        return StopEvent(result="done")


class PoisonStep(Workflow):
    @step
    async def act(self, ev: StartEvent) -> StopEvent:
        os._exit(3)


class BlockingStep(Workflow):
    @step(timeout=6.0)
    async def act(self, ev: StartEvent) -> StopEvent:
        time.sleep(600.0)
        return StopEvent()


class HungThread(Workflow):
    @step(timeout=2.0)
    def act(self, ev: StartEvent) -> StopEvent:
        time.sleep(600.0)
        return StopEvent()


class Messages(Plan, eligibility="act", timeout="5s"):
    @task
    async def act(self, ctx: Any) -> None:
        if ctx.value == "poison":
            os._exit(3)
        await asyncio.sleep(0.02)
        with open(os.environ["TIDEMILL_CULPRITS_DONE"], "ab", buffering=0) as file:
            file.write(b".")


for kind in (Innocent, PoisonStep, BlockingStep, HungThread):
    app.workflow(kind)
app.stream(
    Stream("messages", plans=[Messages], sources=[LogSource("messages", eligibilities=frozenset({"act"}))], engines=1)
)
