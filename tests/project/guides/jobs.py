"""What docs/jobs.md takes for granted: a connection and a table of the program's own, a workflow and a dag."""

from __future__ import annotations

from typing import Any

import asyncpg

from tests.support.guide import database_url
from tidemill.dags import Dag, node
from tidemill.flows import StartEvent, StopEvent, Workflow, step

chunks = ["a", "b"]
pages = [[1, 2], [3]]
nightly = Dag("nightly", [node("send", "send")])


class Report(Workflow):
    @step
    async def write(self, event: StartEvent) -> StopEvent:
        return StopEvent(event.tenant)


async def a_connection(names: dict[str, Any]) -> None:
    names["connection"] = connection = await asyncpg.connect(database_url())
    await connection.execute("CREATE TABLE IF NOT EXISTS orders (id integer)")


async def a_secret(names: dict[str, Any]) -> None:
    names["app"].declarations.configure(webhook_secret="s")


BEFORE = {"On your own transaction": a_connection, "Webhooks": a_secret}
