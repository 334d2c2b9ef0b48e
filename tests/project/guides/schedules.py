"""What docs/schedules.md takes for granted: a task, a workflow and a dag."""

from __future__ import annotations

from typing import Any

from tidemill import App
from tidemill.dags import Dag, node, ref
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.ops.jobs.schedules import list_schedules
from tidemill.ops.operator.operation import Nothing

app = App("shop")


@app.task
async def report(team: str) -> str:
    return team


class Topic(StartEvent):
    topic: str


@app.workflow
class Article(Workflow[Topic, str]):
    @step
    async def write(self, ev: Topic) -> StopEvent:
        return StopEvent(result=ev.topic)


nightly = app.dag(Dag("nightly", nodes=[node("report", "report", args={"team": ref("$.run.day")})]))


async def after(names: dict[str, Any]) -> None:
    async with app.running():
        listed = await app.do(list_schedules, Nothing())
        assert {each.name for each in listed.items} == {"refresh_prices", "sync", "morning-report", "digest", "night"}
