"""What a program declares: tasks, schedules and queues, and the mistakes that are refused at once."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError, UnknownTaskError
from tidemill.core.jobs.job import NewJob
from tidemill.core.retry import RetryPolicy
from tidemill.core.schedule import Cron, Every


@pytest.fixture
def app() -> App:
    return App("shop", database_url="postgresql://nowhere.invalid/none")


def test_a_declared_task_is_still_the_function_it_was(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(4) == 8
    assert double.name == "double"
    assert double.__doc__ == "Twice as much."
    assert double.options.queue == "default"


def test_a_task_carries_what_was_declared_for_its_jobs(app: App) -> None:
    @app.task(name="mail.send", queue="mail", priority=7, retry=3, budget="2m", stall=timedelta(seconds=5), tags=["a"])
    async def send(to: str) -> None: ...

    assert send.is_async
    assert list(app.declarations.tasks) == ["mail.send"]
    job = send.new_job(b'{"to":"x"}')
    assert (job.queue, job.task, job.priority, job.tags) == ("mail", "mail.send", 7, ("a",))
    assert job.options is not None
    assert (job.options.retry, job.options.budget, job.options.stall) == (RetryPolicy(max_attempts=3), 120.0, 5.0)


def test_a_task_without_special_wishes_stores_none(app: App) -> None:
    @app.task
    def plain() -> None: ...

    job = plain.new_job(b"{}")
    assert (job.options, job.tags, job.concurrency_key) == (None, None, None)


def test_a_concurrency_key_is_filled_in_from_the_arguments(app: App) -> None:
    @app.task(concurrency_key="user:{user}", max_concurrency=2)
    def sync(user: int, full: bool = False) -> None: ...

    job = sync.new_job(b'{"user":7}')
    assert (job.concurrency_key, job.max_concurrency) == ("user:7", 2)


def test_a_concurrency_key_that_names_no_argument_is_refused(app: App) -> None:
    def sync(user: int) -> None: ...

    with pytest.raises(ConfigError, match=r"concurrency_key 'user:\{usr\}' does not fit: .* did you mean 'user'"):
        app.task(concurrency_key="user:{usr}")(sync)


def _declare(app: App, **options: Any) -> None:
    @app.task(**options)
    def send(to: str = "") -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"queue": ""}, "is not a queue name"),
        ({"name": "two\nlines"}, "is not a task name"),
        ({"priority": 10}, "priority 10"),
        ({"budget": "soon"}, "budget: 'soon'"),
        ({"stall": -1}, "stall: -1"),
        ({"max_concurrency": 0}, "would never let a job run"),
        ({"cron": "every day"}, "is not a cron expression"),
        ({"cron": "* * * * *", "every": "5m"}, "either cron or every"),
        ({"every": "1ms"}, "too short"),
        ({"cron": "0 9 * * *", "timezone": "Mars/Olympus"}, "Mars/Olympus"),
        ({"every": "5m", "catchup": "some"}, "catchup 'some'"),
        ({"every": "5m", "jitter": "a bit"}, "jitter: 'a bit'"),
        ({"retry": 0}, "max_attempts"),
        ({"isolation": "thread"}, "isolation"),
        ({"retry": "three"}, r"task: retry= takes app.retry\(...\), or a number of attempts, and not 'three'"),
        ({"max_concurrency": "2"}, "'2' would never let a job run; use a whole number"),
        ({"batch": 100}, r"task: batch= takes a Batch, such as Batch\(32, '5ms'\), and not 100"),
        ({"on_failure": "tell"}, "task: on_failure= takes a task"),
        ({"cron": 5}, "cron takes text, such as '0 9 "),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused_at_once(app: App, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _declare(app, **options)


@pytest.mark.parametrize("declare", ["dag", "stream", "pipeline", "monitor", "workflow", "task"])
def test_a_declaration_of_another_kind_is_answered_with_what_to_write(app: App, declare: str) -> None:
    with pytest.raises(ConfigError, match=rf"app\.{declare} takes a .*, and not 'orders\.json'"):
        getattr(app, declare)("orders.json")


def test_a_class_that_is_no_workflow_is_answered_with_how_to_make_it_one(app: App) -> None:
    class Article:
        pass

    with pytest.raises(ConfigError, match=r"takes a workflow, and Article is none: write class Article\(Workflow\)"):
        app.workflow(Article)  # pyright: ignore


def test_a_folder_of_migrations_may_be_named_by_text(app: App, tmp_path: Path) -> None:
    (tmp_path / "0001_sale.sql").write_text("CREATE TABLE sale ()")
    (tmp_path / "0001_sale.down.sql").write_text("DROP TABLE sale")
    app.migrations(str(tmp_path))
    assert [each.folder for each in app.declarations.chains] == [tmp_path]


def test_an_async_task_cannot_be_isolated(app: App) -> None:
    with pytest.raises(ConfigError, match="task send: isolation='process' is for plain functions"):

        @app.task(isolation="process")
        async def send() -> None: ...


def test_two_tasks_of_one_name_are_refused(app: App) -> None:
    _declare(app)
    with pytest.raises(ConfigError, match="two tasks are called 'send'"):
        _declare(app)


def test_a_periodic_task_declares_a_schedule_of_its_name(app: App) -> None:
    @app.task(queue="fetch", cron="*/5 * * * *", timezone="Europe/Paris", catchup="skip", jitter="10s")
    def refresh() -> None: ...

    (declared,) = app.declarations.stored_schedules()
    assert (declared.name, declared.catchup, declared.jitter) == ("refresh", "skip", 10.0)
    assert declared.spec == Cron("*/5 * * * *", "Europe/Paris")
    assert isinstance(declared.work, NewJob)
    assert (declared.work.task, declared.work.queue) == ("refresh", "fetch")


def test_a_task_may_have_further_schedules_with_arguments(app: App) -> None:
    @app.task
    def report(kind: str) -> None: ...

    app.schedule("daily", report.call(kind="short"), every="1d")
    app.schedule("weekly", report.call("long"), cron="@weekly")
    stored = app.declarations.stored_schedules()
    arguments = [(each.name, bytes(each.work.args)) for each in stored if isinstance(each.work, NewJob)]
    assert arguments == [("daily", b'{"kind":"short"}'), ("weekly", b'{"kind":"long"}')]
    assert app.declarations.schedules["daily"].spec == Every(86400.0)
    with pytest.raises(ConfigError, match="two schedules are called 'daily'"):
        app.schedule("daily", report.call(kind="x"), every="1h")


def test_a_schedule_with_arguments_that_do_not_fit_is_refused_when_it_is_declared(app: App) -> None:
    @app.task
    def report(kind: str) -> None: ...

    with pytest.raises(PayloadError, match="task report: the argument 'kind' is missing"):
        app.schedule("daily", report.call(), every="1d")  # pyright: ignore[reportCallIssue]
    with pytest.raises(ConfigError, match=r"app\.schedule takes a call, such as task\.call\(\.\.\.\)"):
        app.schedule("daily", report, every="1d")  # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(UnknownTaskError, match="there is no task 'reprot'; this application declares: report"):
        app.schedule("daily", app.declarations.task("reprot").call(kind="x"), every="1d")


def test_a_rate_may_be_written_as_people_write_it(app: App) -> None:
    app.queue("mail", rate="100/s")
    app.queue("slow", rate="30/m", burst=5)
    app.queue("open")
    assert (app.declarations.limits["mail"].rate, app.declarations.limits["mail"].burst) == (100.0, 10.0)
    assert (app.declarations.limits["slow"].rate, app.declarations.limits["slow"].burst) == (0.5, 5)
    assert app.declarations.limits["open"].rate is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": "fast"}, "rate of queue mail"),
        ({"rate": 0}, "above zero"),
        ({"rate": 5, "burst": 0.5}, "would never let a job start"),
        ({"rate": 5, "burst": 2.0**31}, "is too large: use at most"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(app: App, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app.queue("mail", **options)


# Mistakes at enqueue that need no database to be seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),
        ({"deadline": datetime(2030, 1, 1)}, "has no time zone"),
        ({"delay": "later"}, "delay: 'later'"),
        ({"delay": -1}, "delay: -1"),
        ({"delay": "1s", "at": 5.0}, "either delay= or at="),
        ({"priority": 11}, "priority 11"),
        ({"queue": " "}, "is not a queue name"),
        ({"unique_for": "1m"}, "unique_for= needs a unique_key="),
        ({"concurrency_key": "k", "max_concurrency": 0}, "would never let a job run"),
        ({"deadline": "whenever"}, "deadline: 'whenever'"),
        ({"tags": "urgent"}, "tags"),
    ],
)
async def test_an_option_that_makes_no_sense_is_refused_before_anything_is_stored(
    app: App, options: dict[str, Any], message: str
) -> None:
    @app.task
    def send(to: str = "") -> None: ...

    with pytest.raises(ConfigError, match=message):
        await app.enqueue(send.call(), **options, conn=object())
    with pytest.raises(ConfigError, match=message):
        app.enqueue_sync(send.call(), **options, conn=object())


async def test_what_is_not_a_task_is_refused(app: App) -> None:
    @app.task
    def send(to: str = "") -> None: ...

    with pytest.raises(UnknownTaskError, match="there is no task 'sned'; this application declares: send"):
        await app.enqueue("sned")
    with pytest.raises(ConfigError, match=r"is neither a task nor a call of one: decorate .* with @app\.task"):
        await app.enqueue(len)  # pyright: ignore
    with pytest.raises(PayloadError, match="task send"):
        await app.enqueue(send, 7)  # pyright: ignore


async def test_an_argument_given_twice_is_refused(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    with pytest.raises(PayloadError, match="both in args= and by name"):
        await app.enqueue("send", args={"to": "a"}, to="b")


def test_an_option_that_tasks_do_not_have_is_named_with_the_one_that_was_probably_meant(app: App) -> None:
    with pytest.raises(ConfigError, match="task has no option 'prioritty'; did you mean 'priority'"):
        app.task(prioritty=1)  # pyright: ignore[reportCallIssue]


async def test_starting_a_task_says_how_it_is_enqueued(app: App) -> None:
    @app.task
    async def send() -> None: ...

    with pytest.raises(
        ConfigError, match=r"'send' is a task, and not a workflow or dag: enqueue it with `app\.enqueue"
    ):
        await app.start("send")
    with pytest.raises(ConfigError, match="there is no workflow or dag 'sendd'"):
        await app.start("sendd")
