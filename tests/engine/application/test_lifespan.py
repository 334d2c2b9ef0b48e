"""The life of an application: what its processes open, what is injected, and what surrounds every call."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest

from tests.support import eventually, running_worker
from tests.support.processes import ROOT
from tests.support.streams import running_stream
from tests.support.waiting import PATIENT
from tidemill import INJECTED, App, Invocation, current_job
from tidemill.core.errors import ConfigError
from tidemill.engine.application.lifespan import Lifespan, LifespanError, lifespan_trouble, read_provided
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor
from tidemill.ops.jobs.workers import ListWorkers, list_workers
from tidemill.pipelines import Entity, Pipeline
from tidemill.sources import JsonlSource, LogSource
from tidemill.store.database import Database
from tidemill.streams import Context, Plan, Stream, task as stream_task

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


class Mailer:
    """A client of some service."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.is_open = True


class Session:
    """What is made for each call."""

    def __init__(self, mailer: Mailer) -> None:
        self.mailer = mailer


@asynccontextmanager
async def one_mailer(app: App) -> AsyncIterator[Mailer]:
    mailer = Mailer()
    await asyncio.sleep(0)
    yield mailer
    mailer.is_open = False


async def test_all_shapes_get_what_the_lifespan_yields_and_run_within_the_middleware(
    database_url: str, tmp_path: Path
) -> None:
    opened: list[Mailer] = []
    calls: list[tuple[str, str, str]] = []

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Mailer]:
        async with one_mailer(app) as mailer:
            opened.append(mailer)
            yield mailer

    @contextmanager
    def noted(call: Invocation) -> Iterator[None]:
        tenant.set(f"tenant of {call.shape}")
        yield
        calls.append((call.shape, call.name, call.id))

    @asynccontextmanager
    async def also_async(call: Invocation) -> AsyncIterator[None]:
        yield

    app = App("shop", lifespan=lifespan, middleware=[noted, also_async], database_url=database_url, **PATIENT)

    def say(mailer: Mailer, what: str) -> None:
        assert mailer.is_open
        mailer.sent.append(f"{what} ({tenant.get()})")

    @app.task
    async def send(order: int, mailer: Mailer = INJECTED) -> int:
        say(mailer, f"task {order}")
        return order

    @app.task
    def send_plainly(order: int, mailer: Mailer = INJECTED) -> int:
        say(mailer, f"plain task {order}")
        return order

    @app.workflow
    class Article(Workflow):
        @step
        async def write(self, ev: StartEvent, mailer: Mailer = INJECTED) -> StopEvent:
            say(mailer, "step")
            return StopEvent(result="done")

    class Spam(Plan, eligibility="spam"):
        @stream_task
        async def score(self, ctx: Context, mailer: Mailer = INJECTED) -> None:
            say(mailer, f"message {ctx.value}")

    app.stream(Stream("posts", sources=[LogSource("posts", eligibilities={"spam"})], plans=[Spam], engines=0))

    blog = Pipeline("blog", tmp_path)

    @blog.stage(input="in/{name}.txt", output="out/{name}.txt")
    def page(entity: Entity, text: str, mailer: Mailer = INJECTED) -> str:
        say(mailer, f"stage {text}")
        return text

    app.pipeline(blog)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")

    class Count:
        def on_event(self, state: Any, event: Any, mailer: Mailer = INJECTED) -> None:
            say(mailer, f"fold {event.entity}")

    events = tmp_path / "events.jsonl"
    events.write_text('{"id": "1", "at": 1000, "machine": "m1"}\n')
    app.monitor(Monitor("machines", source=JsonlSource(events), entity=lambda event: event["machine"], fold=Count))

    async with app.running():
        assert await (await app.enqueue(send.call(1))) == 1
        assert await (await app.enqueue(send_plainly.call(2))) == 2
        assert await (await app.start(Article)) == "done"
        await app.publish("posts", "hello")
        wanted = {
            "task 1 (tenant of task)",
            "plain task 2 (tenant of task)",
            "step (tenant of step)",
            "message hello (tenant of stream task)",
            "stage a (tenant of stage)",
            "fold m1 (tenant of fold)",
        }
        await eventually(lambda: wanted <= {said for mailer in opened for said in mailer.sent})
    assert len(opened) == 1, "opened once in this process, whatever its roles"
    assert not opened[0].is_open
    seen = {(shape, name) for shape, name, _ in calls}
    assert seen >= {
        ("task", "send"),
        ("task", "send_plainly"),
        ("step", "Article.write"),
        ("stream task", "posts/Spam.score"),
        ("stage", "blog/page"),
        ("fold", "machines"),
    }
    assert all(id for shape, _, id in calls if shape != "stream task"), calls


async def test_a_dependency_is_made_for_each_call_and_closed_after_it(database_url: str) -> None:
    log: list[str] = []

    @asynccontextmanager
    async def open_session(mailer: Mailer = INJECTED) -> AsyncIterator[Session]:
        log.append("open")
        await asyncio.sleep(0)
        yield Session(mailer)
        await asyncio.sleep(0)
        log.append("closed")

    app = App("shop", lifespan=one_mailer, dependencies={Session: open_session}, database_url=database_url, **PATIENT)

    @app.task
    async def first(session: Session = INJECTED, mailer: Mailer = INJECTED) -> bool:
        log.append("first")
        return session.mailer is mailer

    @app.task
    def second(session: Session = INJECTED) -> str:
        log.append("second")
        return type(session).__name__

    async with app.running():
        assert await (await app.enqueue(first.call())) is True
        assert await (await app.enqueue(second.call())) == "Session"
    assert log == ["open", "first", "closed", "open", "second", "closed"]


async def test_middleware_sees_the_result_and_the_error_and_cannot_hide_the_error(database_url: str) -> None:
    seen: list[Any] = []

    @contextmanager
    def outer(call: Invocation) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(("outer", str(error), current_job().attempt))
        else:
            seen.append(("result", call.arguments, call.result))

    @asynccontextmanager
    async def inner(call: Invocation) -> AsyncIterator[None]:
        try:
            yield
        except KeyError as error:
            raise ValueError("translated") from error

    app = App("shop", middleware=[outer, inner], database_url=database_url, **PATIENT)

    @app.task
    async def fails() -> None:
        raise KeyError("x")

    @app.task
    def works(number: int) -> int:
        return number + 1

    async with app.running():
        failed = await app.wait(await app.enqueue(fails.call()))
        assert await (await app.enqueue(works.call(number=1))) == 2
    assert failed.state == "failed"
    assert failed.errors[-1]["message"] == "translated"
    assert seen == [("outer", "translated", 1), ("result", {"number": 1}, 2)]


async def test_a_lifespan_that_fails_is_named_and_tried_again_until_it_works(database_url: str) -> None:
    works = threading.Event()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[Mailer]:
        if not works.is_set():
            raise ConnectionError("the mail server is away")
        yield Mailer()

    app = App("shop", lifespan=lifespan, database_url=database_url, **PATIENT)

    @app.task
    async def send(mailer: Mailer = INJECTED) -> str:
        return type(mailer).__name__

    async with app:
        job = await app.enqueue(send.call())

        async def trouble() -> str:
            found = (await app.do(list_workers, ListWorkers())).items
            return next((each.trouble for each in found if each.trouble and "lifespan" in each.trouble), "")

        async def with_worker() -> None:
            async with running_worker(app, ["default"]):
                assert await job == "Mailer"

        worker = asyncio.create_task(with_worker())
        said = await eventually(trouble)
        assert (
            "takes no work: the lifespan of application shop failed: ConnectionError: the mail server is away" in said
        )
        assert "test_lifespan.py" in said
        assert (lifespan_trouble() or "nothing") in said
        assert (await app.jobs.get(job)).state == "ready"
        works.set()
        await worker
        assert lifespan_trouble() is None


async def test_a_script_gets_the_error_of_its_lifespan(database_url: str) -> None:
    @contextmanager
    def lifespan(app: App) -> Iterator[None]:
        raise ConnectionError("the mail server is away")
        yield

    app = App("shop", lifespan=lifespan, database_url=database_url, **PATIENT)
    with pytest.raises(LifespanError, match="shop failed: ConnectionError: the mail server is away"):
        async with app.running():
            pass


async def test_what_a_lifespan_raises_is_its_error_even_if_it_is_no_exception() -> None:
    class Verdict(BaseException): ...

    @asynccontextmanager
    async def judges() -> AsyncIterator[None]:
        raise Verdict("guilty")
        yield

    with pytest.raises(LifespanError, match="shop failed: Verdict: guilty"):
        async with Lifespan("shop", judges).opened():
            pass


async def test_a_lifespan_that_hangs_is_named_with_its_place_and_given_up() -> None:
    @asynccontextmanager
    async def hangs() -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield

    lifespan = Lifespan("shop", hangs, start_seconds=0.05)
    with pytest.raises(LifespanError, match=r"has not started within 0.05 s: it waits at .*test_lifespan.py:\d+"):
        async with lifespan.opened():
            pass
    stopped = asyncio.Event()
    stopped.set()
    async with lifespan.opened_patiently(stopped) as is_open:
        assert not is_open


async def test_a_lifespan_that_ends_by_itself_ends_the_work_of_its_process() -> None:
    crash = asyncio.Event()

    @asynccontextmanager
    async def crashes() -> AsyncIterator[None]:
        async def watch() -> None:
            await crash.wait()
            raise ConnectionError("gone")

        async with asyncio.TaskGroup() as group:
            group.create_task(watch())
            yield

    lifespan = Lifespan("shop", crashes)
    async with lifespan.opened():
        crash.set()
        with pytest.raises(LifespanError, match="ended while its process was at work"):
            await lifespan.watch()


async def test_what_nothing_provides_is_named_before_work_is_taken(database_url: str) -> None:
    app = App("shop", lifespan=one_mailer, database_url=database_url)

    @app.task
    async def send(session: Session = INJECTED) -> None: ...

    with pytest.raises(ConfigError, match=r"task send, parameter session: nothing provides Session; .* give Mailer"):
        async with app.running():
            pass


async def test_objects_are_found_by_class_base_class_and_qualified_annotation() -> None:
    class Better(Mailer):
        pass

    replica = Annotated[Mailer, "replica"]
    lifespan = Lifespan("shop")
    lifespan.overrides = read_provided((better := Better(),))
    assert lifespan.find(Mailer, "here") is better
    assert lifespan.find(Better, "here") is better
    with pytest.raises(ConfigError, match="nothing provides"):
        lifespan.find(replica, "here")
    lifespan.overrides = {Mailer: better, replica: (other := Mailer())}
    assert lifespan.find(replica, "here") is other
    assert lifespan.find(Mailer, "here") is better
    lifespan.overrides = {"a": better, "b": other}
    with pytest.raises(ConfigError, match="2 objects of the lifespan are a Mailer"):
        lifespan.find(Mailer, "here")
    with pytest.raises(ConfigError, match="two objects of class Mailer"):
        read_provided((Mailer(), Mailer()))


def test_wrong_declarations_are_refused() -> None:
    app = App("shop")
    with pytest.raises(ConfigError, match="task send: mailer = INJECTED needs an annotation"):

        @app.task
        async def send(mailer=INJECTED) -> None: ...

    def needs_itself(session: Session = INJECTED) -> Session:
        return session

    circular = App("shop", dependencies={Session: needs_itself})
    with pytest.raises(ConfigError, match="needs_itself needs itself"):

        @circular.task
        async def use(session: Session = INJECTED) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"lifespan": 5}, "lifespan=5 is not a function that takes the application"),
        ({"lifespan": lambda: None}, "takes the application"),
        ({"middleware": 5}, "middleware=5 is not a list of functions"),
        ({"middleware": ["timed"]}, "middleware 'timed' is not a function that takes the Invocation"),
        ({"middleware": [lambda call, proceed: None]}, "takes the Invocation, and only that"),
        ({"dependencies": [Session]}, "is not a dict, such as"),
        ({"dependencies": {Session: 5}}, "5 is not a function that makes"),
    ],
)
def test_what_cannot_be_called_is_refused_when_the_application_is_made(wrong: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        App("shop", **wrong)


def test_a_function_called_in_place_says_that_nothing_was_injected() -> None:
    app = App("shop")

    @app.task
    def send(order: int, mailer: Mailer = INJECTED) -> int:
        return len(mailer.sent)

    with pytest.raises(ConfigError, match=r"INJECTED has no 'sent': .* pass the object yourself"):
        send(1)
    assert send(1, mailer=Mailer()) == 0
    assert send.signature.names == ("order",), "it is no argument of a job"


async def test_async_middleware_that_waits_is_refused_around_a_fold_only() -> None:
    from tidemill.engine.application.middleware import surrounded

    @asynccontextmanager
    async def waits(call: Invocation) -> AsyncIterator[None]:
        await asyncio.sleep(0.001)
        yield

    lifespan = Lifespan("shop", middleware=[waits])
    fold = surrounded(lifespan, "fold", "m", lambda state, event: 1, lambda _: "")
    async with lifespan.opened():
        with pytest.raises(ConfigError, match="waits waits for something, and a plain function on the event loop"):
            fold({}, {})
        assert await asyncio.to_thread(fold, {}, {}) == 1


@pytest.fixture
async def lifespan_app(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[App]:
    from tests.support import lifespan_app

    monkeypatch.setenv("LIFESPAN_LOG", str(tmp_path / "log"))
    monkeypatch.setenv("LIFESPAN_AWAY", str(tmp_path / "away"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with lifespan_app.app.declarations.overriding(database_url=database_url, **PATIENT):
        yield lifespan_app.app
        await lifespan_app.app.close()


async def test_child_processes_open_the_lifespan_once_and_close_it(lifespan_app: App, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with running_worker(lifespan_app, ["isolated"], max_concurrency=1):
        first = (await lifespan_app.wait(await lifespan_app.enqueue("where"))).result
        second = (await lifespan_app.wait(await lifespan_app.enqueue("where"))).result
    assert first == second
    assert first["client"] == first["task"] != os.getpid()
    lines = [line for line in log.read_text().splitlines() if line.endswith(f" {first['task']}")]
    assert [line.rpartition(" ")[0] for line in lines] == ["open", "task where", "task where", "close"]


async def test_a_job_waits_until_its_process_can_open_the_lifespan(lifespan_app: App, tmp_path: Path) -> None:
    async with running_worker(lifespan_app, ["isolated"]):
        (tmp_path / "away").touch()
        job = await lifespan_app.enqueue("where")

        async def note() -> str:
            return (await lifespan_app.jobs.get(job)).note or ""

        assert "its process takes no work: the lifespan of" in await eventually(
            lambda: _containing(note, "takes no work")
        )
        (tmp_path / "away").unlink()
        found = await lifespan_app.wait(job)
    assert (found.state, len(found.errors)) == ("succeeded", 0), "no attempt was counted against it"


async def test_an_engine_process_of_a_stream_opens_the_lifespan_and_says_why_it_cannot(
    lifespan_app: App, database: Database, tmp_path: Path
) -> None:
    log, stream = tmp_path / "log", lifespan_app.streams.declared["notes"]
    (tmp_path / "away").touch()

    async def trouble() -> str:
        found = (await lifespan_app.do(list_workers, ListWorkers())).items
        # This process may also report threads that tests before this one have left behind.
        return next((each.trouble for each in found if each.trouble and "is away" in each.trouble), "")

    async def run() -> None:
        async with running_stream(stream, lifespan_app.settings.database_url or "", target=lifespan_app_path()):
            await eventually(lambda: log.exists() and "stream task notes/Noting.note" in log.read_text())

    await lifespan_app.publish("notes", 1)
    running = asyncio.create_task(run())
    assert "ConnectionError: the service is away" in await eventually(trouble)
    (tmp_path / "away").unlink()
    await running
    await eventually(lambda: "close" in log.read_text())
    pids = {line.rpartition(" ")[2] for line in log.read_text().splitlines() if "message" in line or "open" in line}
    assert len(pids - {str(os.getpid())}) == 1


def lifespan_app_path() -> str:
    return str(ROOT / "tests" / "support" / "lifespan_app.py")


async def _containing(read: Any, text: str) -> str:
    found = await read()
    return found if text in found else ""
