"""A wrong call of what starts work is answered with what to write, before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tests.support.shop import Asking, Topic, Word
from tidemill import App
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.dags import Dag, input_node
from tidemill.engine.jobs.task import ScheduleOptions
from tidemill.flows import step
from tidemill.flows.errors import WorkflowValidationError
from tidemill.ops.runs.events import SendEvent, send_event
from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.store.database import Database


class Undeclared(Asking):
    pass


class Shop:
    def __init__(self, app: App) -> None:
        @app.task
        async def send(n: int = 0) -> None: ...

        notes = Pipeline("notes", store=DatabaseStates("notes"))

        @notes.stage(input="raw/{name}.txt", output="done/{name}.txt")
        def finish(text: bytes) -> bytes:
            return text

        self.app: Any = app
        self.send: Any = send
        app.workflow(Asking, timeout=None)
        app.dag(Dag("asks", [input_node("approve", prompt="?")]))
        app.pipeline(notes)

    async def write(self, pattern: str, content: Any) -> Any:
        return await self.app.states("notes").write(pattern, {"name": "a"}, content)

    async def event(self, event: Any, *args: Any, **options: Any) -> None:
        await (await self.app.start(Asking)).send_event(event, *args, **options)

    async def event_by_request(self, step: str) -> None:
        run = await self.app.start(Asking)
        await self.app.do(send_event, SendEvent(id=run.id, type="Word", fields={"text": "a"}, step=step))


Wrong = Callable[[Shop], Any]

WRONG: list[tuple[Wrong, str]] = [
    (lambda shop: shop.app.start(shop.send), "'send' is a task, and not a workflow or dag: enqueue it with"),
    (lambda shop: shop.app.start(shop.send.call()), "'send' is a task, and not a workflow or dag: enqueue it with"),
    (lambda shop: shop.app.start(None), "start takes a workflow, a dag, or the name of one, and not None"),
    (
        lambda shop: shop.app.start(Asking()),
        "this Asking is not the workflow that the application declares: start it by its",
    ),
    (lambda shop: shop.app.start(Undeclared), r"declare it: app.workflow\(Undeclared\)"),
    (lambda shop: shop.app.start("Askng"), "did you mean 'Asking'"),
    (lambda shop: shop.app.start(Asking, prioritty=3), "did you mean 'priority'"),
    (lambda shop: shop.app.start(Asking, Word(text="a")), "starts with a Topic, and not with"),
    (lambda shop: shop.app.start(Asking, Topic(), delya=1), "start has no option 'delya'; did you mean 'delay'"),
    (lambda shop: shop.app.start("asks", {}, delya=1), "start has no option 'delya'; did you mean 'delay'"),
    (lambda shop: shop.app.start(Asking, Topic(), topic="a"), "the start event and the keyword 'topic': give one"),
    (lambda shop: shop.app.publish("", {}), "'' is not a topic name"),
    (lambda shop: shop.app.publish("news", {}, key=7), "key=7 is not text"),
    (lambda shop: shop.app.publish("news", {}, ky="a"), "publish has no option 'ky'; did you mean 'key'"),
    (
        lambda shop: shop.app.publish("news", {}, delay=1),
        "no option 'delay'; its options are conn, headers",
    ),
    (lambda shop: shop.app.submit("r1", "approve", {}), "submit takes a run, such as app.start returns, or its number"),
    (lambda shop: shop.app.submit(1, "approve", {}, delay=1), "submit has no option 'delay'; its options are by, conn"),
    (lambda shop: shop.app.submit(999, "approve", {}), "there is no run 999"),
    (lambda shop: shop.event(Word), r"send_event takes an event, such as Word\(...\), and not"),
    (lambda shop: shop.event({"text": "a"}), r"send_event takes an event, such as Approved\(by='ann'\), and not"),
    (lambda shop: shop.event(Word(text="a"), "aks"), "Asking has no step 'aks'; its steps are ask; did you mean 'ask'"),
    (lambda shop: shop.event_by_request("aks"), "Asking has no step 'aks'; its steps are ask; did you mean 'ask'"),
    (
        lambda shop: shop.event(Word(text="a"), priority=7),
        "no option 'priority'; its options are at, conn",
    ),
    (lambda shop: shop.write("rw/{name}.txt", "x"), r"no stage takes in rw/a.txt; they take in raw/\{name\}.txt"),
    (lambda shop: shop.write("done/{name}.txt", "x"), "is made by stage finish: write what it takes in"),
    (
        lambda shop: shop.write("raw/{name}.txt", 7),
        "a state is text, bytes or chunks of bytes, and not 7",
    ),
    (lambda shop: shop.write("raw/{name}.txt", {"a": 1}), "the content of a state is text, bytes or chunks of bytes"),
    (lambda shop: shop.app.publish("news", {}, key="\0"), "key .* cannot be stored: it contains NUL"),
    (lambda shop: shop.app.publish("news", {}, headers={"n": 1}), "header 'n' is 1: names and values of headers are"),
    (lambda shop: shop.app.publish("news", {}, headers=["n"]), "are not headers: write a dict"),
    (lambda shop: shop.event(Word(text="\ud800")), "Word cannot be stored as JSON: .*surrogates not allowed"),
    (
        lambda shop: shop.app.batch([], on_sucess=shop.send),
        "no option 'on_sucess'; did you mean 'on_success'",
    ),
]


async def test_a_wrong_call_is_answered_with_what_to_write(app: App) -> None:
    shop = Shop(app)
    for call, said in WRONG:
        with pytest.raises(TidemillError, match=said):
            await call(shop)


#: Values of options that no statement can store, or that nothing could read afterwards.
UNSTORABLE = [
    ({"priority": True}, "priority True is outside 0 to 9"),
    ({"priority": 5.0}, "priority 5.0 is outside 0 to 9"),
    ({"tags": [None]}, "tag None is not text"),
    ({"tags": [["a"]]}, r"tag \['a'\] is not text"),
    ({"tags": ["\0"]}, "tag '.x00' cannot be stored: it contains NUL"),
    ({"tags": ["\ud800"]}, "cannot be stored: it contains NUL or half of a surrogate pair"),
    ({"at": datetime.max.replace(tzinfo=UTC)}, "at=9999-.* is not within the years 1 to 9999, in UTC; leave it out"),
    ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))}, "at=0001-.* is not within the years"),
    ({"at": -253402300799}, "at=-253402300799 is not within the years"),
    ({"at": 1e300}, "is not within the years"),
    ({"deadline": datetime.max.replace(tzinfo=UTC)}, "deadline=9999-.* is not within the years"),
]


@pytest.mark.parametrize(("options", "said"), UNSTORABLE)
async def test_an_option_that_cannot_be_stored_is_refused_before_the_transaction_of_the_caller_fails(
    app: App, database: Database, options: dict[str, Any], said: str
) -> None:
    shop = Shop(app)
    async with database.transaction() as connection:
        for start in (
            lambda **more: shop.app.enqueue(shop.send.call(), **more),
            lambda **more: shop.app.enqueue_many([shop.send.call()], **more),
            lambda **more: shop.app.batch([shop.send.call()], **more),
            lambda **more: shop.app.start(Asking, **more),
            lambda **more: shop.app.start("asks", **more),
        ):
            with pytest.raises(ConfigError, match=said):
                await start(conn=connection, **options)
        await connection.execute("SELECT 1")


@pytest.mark.parametrize("wrong", [True, 5.0])
def test_a_priority_is_a_whole_number_wherever_it_is_declared(app: App, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="outside 0 to 9"):
        app.task(priority=wrong)(lambda: None)
    with pytest.raises(WorkflowValidationError, match="outside 0 to 9"):
        step(queue="q", priority=wrong)(Asking.ask)


def test_tags_are_words_wherever_they_are_declared(app: App) -> None:
    with pytest.raises(ConfigError, match="tags='mail' is one string"):
        app.task(tags="mail")(lambda: None)


@pytest.mark.parametrize("option", sorted(ScheduleOptions.__annotations__))
def test_a_task_takes_the_options_of_its_schedule_only_with_a_schedule(app: App, option: str) -> None:
    given = {"timezone": "Europe/Paris", "catchup": "all", "jitter": 30.0, "overlap": "skip"}[option]
    with pytest.raises(ConfigError, match=f"{option}= is of a schedule: add cron= or every="):
        app.task(name="unscheduled", **{option: given})(lambda: None)
    app.task(name="scheduled", cron="0 3 * * *", **{option: given})(lambda: None)
    periodic = app.declarations.schedules["scheduled"]
    assert (periodic.spec.timezone if option == "timezone" else getattr(periodic, option)) == given  # pyright: ignore[reportAttributeAccessIssue]
