"""The application that the commands of the guides are given to: everything has the name that it has in a guide."""

from __future__ import annotations

from typing import Any

from tidemill import App
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, sustained
from tidemill.pipelines import Pipeline
from tidemill.sources import JsonlSource, LogSource
from tidemill.streams import Plan, Stream, task

app = App("shop")


@app.task(queue="mail")
async def send_receipt(order_id: int) -> dict[str, int]:
    return {"sent": order_id}


@app.task(queue="fetch", cron="*/5 * * * *", timezone="Europe/Paris")
def refresh_prices() -> dict[str, int]:
    return {"prices": 120}


@app.task(name="etl.extract", queue="fetch")
async def extract(day: str) -> dict[str, int]:
    return {"rows": 120}


@app.task(name="etl.load")
async def load(rows: int) -> dict[str, int]:
    if rows == 120:
        raise OSError("the disk is full")
    return {"loaded": rows}


class Written(Event):
    text: str


class Approved(HumanResponseEvent):
    ok: bool


class Closed(HumanResponseEvent): ...


@app.workflow(timeout=None)
class Article(Workflow):
    """Waits to be approved, and then until it is cancelled."""

    @step
    async def write(self, ctx: Context, ev: StartEvent) -> Written:
        for number in range(5):
            await ctx.store.set(f"line {number}", number)
            await ctx.sleep(0.01)
        return Written(text="On tides")

    @step
    async def approve(self, ctx: Context, ev: Written) -> StopEvent:
        await ctx.wait_for_event(Approved)
        await ctx.wait_for_event(Closed)
        return StopEvent()


class SpamPlan(Plan, eligibility="spam_comment"):
    @task
    async def load(self, ctx: Any) -> str:
        if "bad" in ctx.value:
            raise ConnectionError("connection refused")
        return "fine"


app.stream(
    Stream(
        "posts",
        plans=[SpamPlan],
        engines=0,
        max_attempts=1,
        sources=[
            LogSource("unified_posts", weight=8, eligibilities={"spam_comment"}),
            LogSource("recovery", weight=1, eligibilities={"spam_comment"}),
        ],
    )
)

blog = Pipeline("auto-blog", root="output/")


@blog.stage(input="daily/{date:date}/*.txt", output="summary/{date}.txt", in_process=True)
def summary(entity: Any, files: Any) -> str:
    return "\n".join(file.text() for file in files)


@blog.stage(input="summary/{date:date}.txt", output="final/{date}-daily-digest.md", in_process=True)
def digest(entity: Any, text: str) -> str:
    return f"# {entity.date}\n\n{text}"


app.pipeline(blog)


class Machine:
    def on_event(self, state: Any, event: Any) -> None:
        state.hot_since = (state.hot_since or event.at) if event["celsius"] >= 80 else None


app.monitor(
    Monitor(
        "machines",
        source=JsonlSource("readings.jsonl", of="machine"),
        entity=lambda event: event["machine"],
        fold=Machine,
        idle=0.05,
        triggers=[sustained("hot", when=lambda s, now: s.hot_since is not None, since=lambda s: s.hot_since)],
    )
)
