"""Log lines carry the ids of what they speak of."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import structlog

from tests.support import finished, running_worker
from tidemill import App, Snooze, current_job
from tidemill.store.database import Database

SAY = """
import structlog
from tidemill.engine.worker.context import RunningJob, enter_job
from tidemill.engine.telemetry.logs import configure_logs
configure_logs({level!r}, {form!r})
log = structlog.get_logger("app")
log.info("outside", colour="red")
enter_job(RunningJob(7, 2, "mail", "send"))
log.info("inside", colour="blue")
log.debug("detail")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("broken")
"""


def say(level: str, form: str) -> tuple[str, str]:
    """What a program writes to standard output and to standard error."""
    program = SAY.format(level=level, form=form)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def test_lines_logged_inside_a_job_say_which_job_it_is() -> None:
    output, errors = say("info", "json")
    outside, inside, broken = [msgspec.json.decode(line) for line in errors.splitlines()]
    assert output == ""
    assert (outside["event"], outside["colour"], outside["level"]) == ("outside", "red", "info")
    assert "job" not in outside
    assert (inside["job"], inside["task"], inside["attempt"]) == (7, "send", 2)
    assert "ZeroDivisionError" in broken["exception"]
    assert outside["timestamp"].endswith("Z")


def test_without_a_terminal_lines_are_json_by_themselves() -> None:
    _, errors = say("info", "auto")
    assert all(isinstance(msgspec.json.decode(line), dict) for line in errors.splitlines())


def test_people_get_readable_lines() -> None:
    _, errors = say("debug", "human")
    line = next(line for line in errors.splitlines() if "inside" in line)
    assert not line.startswith("{")
    assert "job=7" in line
    assert any("detail" in line for line in errors.splitlines())


@pytest.fixture
def app(app: App) -> App:
    @app.task(queue="mail", retry=app.retry(2, backoff=0.01))
    async def fail() -> None:
        raise ValueError("no luck")

    @app.task(queue="mail")
    async def snooze() -> None:
        if current_job().attempt == 1:
            raise Snooze(0.01, "not ready")

    return app


async def test_failures_retries_and_snoozes_are_logged_with_job_task_attempt_and_worker(app: App, database) -> None:
    with structlog.testing.capture_logs() as lines:
        async with running_worker(app) as worker:
            failed, snoozed = await app.enqueue("fail"), await app.enqueue("snooze")
            await finished(database, failed.id)
            await finished(database, snoozed.id)
    about = {(line["event"], line["job"]): line for line in lines if "job" in line}
    retried = about["job will be retried", failed.id]
    assert (retried["log_level"], retried["task"], retried["attempt"]) == ("warning", "fail", 1)
    assert retried["worker"] == worker.work.runner.worker
    assert "no luck" in retried["why"]
    assert (about["job failed", failed.id]["log_level"], about["job failed", failed.id]["attempt"]) == ("error", 2)
    assert about["job snoozed", snoozed.id]["log_level"] == "info"


async def test_the_life_of_a_worker_is_logged_with_its_name(app: App, database: Database) -> None:
    with structlog.testing.capture_logs() as lines:
        async with running_worker(app) as worker:
            pass
    events = [line["event"] for line in lines if line.get("worker") == worker.work.runner.worker]
    assert events == ["worker started", "worker stopping", "worker stopped"]


ROUGH = """
import logging
import structlog
from tidemill.engine.telemetry.logs import configure_logs
configure_logs("info", "human")
def connect(password):
    raise ValueError("refused \\x1b[2J")
structlog.get_logger().info("lost \\x1b[31m\\n09:00:00 [info     ] all is well", entity="x\\x1b[5m")
logging.getLogger("library").warning("said \\x1b[31m")
try:
    connect("hunter" + str(2))
except ValueError:
    structlog.get_logger().exception("broken")
    logging.getLogger("library").exception("broken")
"""


def test_readable_lines_show_no_local_variables_and_hold_nothing_that_a_terminal_obeys() -> None:
    said = subprocess.run([sys.executable, "-c", ROUGH], capture_output=True, text=True, check=True).stderr
    assert said.count("ValueError: refused \\x1b[2J") == 2
    assert "hunter2" not in said
    assert "\x1b" not in said
    assert "entity=x\\x1b[5m" in said
    assert "\n    09:00:00 [info     ] all is well" in said
