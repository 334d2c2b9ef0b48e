"""NAME: one application with work of every shape. `tidemill dev app.py` runs all of it."""

from pathlib import Path

from tidemill import App
from tidemill.dags import Dag, node, ref
from tidemill.flows import Context, Event, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import AttributeDict, Event as VisitEvent, Monitor, absent
from tidemill.pipelines import Entity, Pipeline
from tidemill.sources import LogSource
from tidemill.streams import Context as MessageContext, Plan, Stream, task

HERE = Path(__file__).parent

app = App("NAME")


# A job: enqueued, retried, watched. Try `tidemill enqueue app.py greet '{"name": "Ada"}'`.
@app.task(retry=3)
async def greet(name: str) -> str:
    return f"Hello, {name}!"


# A schedule.
@app.task(cron="0 * * * *")
async def count_visits() -> dict[str, int]:
    await app.streams.publish("visits", {"page": "/"})
    return {"visits": 1}


# A flow: steps that exchange events, durable, and able to wait for a person. Try `tidemill inputs`.
class Article(StartEvent):
    topic: str


class Approved(Event):
    ok: bool


@app.workflow
class Publish(Workflow[Article, str]):
    @step
    async def ask(self, ctx: Context, article: Article) -> StopEvent:
        question = InputRequiredEvent(text=f"Publish {article.topic}?")
        answer = await ctx.wait_for_event(Approved, waiter_event=question)
        return StopEvent(result="published" if answer.ok else "rejected")


# A dag: tasks in the order of their dependencies.
app.dag(
    Dag(
        "welcome",
        nodes=[
            node("hello", "greet", args={"name": ref("$.run.name")}),
            node("again", "greet", args={"name": ref("$.hello")}),
        ],
    )
)


# A stream: messages of a topic through plans.
class Visits(Plan, eligibility="visits"):
    @task
    async def count(self, message: MessageContext) -> dict[str, str]:
        return {"page": message.value["page"]}


app.stream(Stream("visits", plans=[Visits], sources=[LogSource("visits", eligibilities={"visits"})]))

# A pipeline: files that must exist, and how to build them. Write a file into notes/ and watch pages/.
pages = Pipeline("pages", root=HERE)


@pages.stage(input="notes/{name}.txt", output="pages/{name}.html")
async def page(entity: Entity, text: str) -> str:
    return f"<h1>{entity.name}</h1><p>{text}</p>"


app.pipeline(pages)


# A monitor: a state for each entity, and alerts.
class Page:
    def on_event(self, state: AttributeDict, event: VisitEvent) -> None:
        state.visits = (state.visits or 0) + 1


app.monitor(
    Monitor(
        "pages",
        source=LogSource("visits"),
        entity=lambda event: event["page"],
        fold=Page,
        triggers=[absent("not-visited", after="5m")],
    )
)
