"""What docs/streams.md takes for granted: a model, authors, and what the outbox of a task writes to."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.support import value
from tests.support.guide import database_url
from tests.support.streams import all_read, running_stream
from tidemill import App
from tidemill.flows import Context, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.sinks import LogSink
from tidemill.sources import LogSource
from tidemill.streams import Stream


class Model:
    def score(self, texts: list[str]) -> list[bool]:
        return ["free money" in text for text in texts]


def load_model() -> Model:
    return Model()


async def fetch_author(name: str) -> str:
    return name


class Approved(HumanResponseEvent): ...


class Waiting(Workflow):
    @step
    async def wait(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.wait_for_event(Approved)
        return StopEvent(result="approved")


async def body(source: str, names: dict[str, Any]) -> None:
    """Run a block as the body of a task of a plan, with one message."""
    app = App("outbox")

    @app.task
    async def send_mail(to: str) -> None: ...

    logs = Pipeline("logs", store=DatabaseStates("logs"))

    @logs.stage(input="logs/{date}.md", output="copies/{date}.md")
    async def copy(entity: Any, text: str) -> str:
        return text

    app.pipeline(logs)
    app.workflow(Waiting)
    run = await app.start(Waiting)
    names |= {"send_mail": send_mail, "run_id": run.id}
    text = textwrap.indent(source, " " * 8)
    exec(f"class Handing(Plan, eligibility='all'):\n    @task\n    async def hand(self, ctx):\n{text}\n", names)
    mails = LogSource("mails", eligibilities={"all"})
    stream = app.stream(
        Stream("all", plans=[names["Handing"]], sources=[mails], sinks=[LogSink("verdicts")], engines=0)
    )
    async with app.database() as database:
        await database.fetch("CREATE TABLE verdict (id integer, verdict text)")
        await app.streams.publish("mails", {"id": 7, "author": "ann", "date": "2026-01-15", "text": "free money"})
        async with app.running(), running_stream(stream, database_url()):
            await all_read(database, "mails")
            if "run_id" in source:
                assert await run == "approved"
        if "verdict WHERE" in source or "INTO verdict" in source or "UPDATE verdict" in source:
            assert await value(database, "SELECT verdict FROM verdict WHERE id = 7") == "spam"
        emitted = "SELECT count(*) > 0 FROM tidemill.log_message WHERE topic = 'verdicts'"
        assert await value(database, emitted) is ("ctx.emit" in source)
        await database.fetch("DROP TABLE verdict")
    await app.close()
