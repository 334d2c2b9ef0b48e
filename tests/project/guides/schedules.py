"""What docs/schedules.md takes for granted: a task."""

from __future__ import annotations

from typing import Any

from tidemill import App
from tidemill.ops.jobs.schedules import list_schedules
from tidemill.ops.operator.operation import Nothing

app = App("shop")


@app.task
async def report(team: str) -> str:
    return team


async def after(names: dict[str, Any]) -> None:
    async with app.running():
        listed = await app.do(list_schedules, Nothing())
        assert {each.name for each in listed.items} == {"refresh_prices", "sync", "morning-report"}
