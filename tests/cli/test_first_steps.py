"""A first user's path through the command line, and what happens to its processes when some are killed."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cli import (
    APP,
    PATIENCE,
    TIDEMILL,
    Process,
    all_gone,
    asked_until,
    environment,
    listing,
    make_folder,
    ok,
    read_until,
    run,
    wait_for,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="module")
def up(folder: Path) -> Iterator[Process]:
    process = Process(folder, "up", "app.py", "--trust-local")
    process.line("worker started")
    process.line("scheduler started")
    yield process
    process.close()


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("other"))


@pytest.fixture
def other_up(other_folder: Path) -> Iterator[Process]:
    """A tree of its own, for tests that end it."""
    process = Process(other_folder, "up", "app.py", "--trust-local")
    process.line("worker started")
    process.line("scheduler started")
    yield process
    process.close()


def test_a_job_is_enqueued_and_its_result_comes_back(folder: Path, up: Process) -> None:
    number, result = ok(folder, "enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--wait").splitlines()
    assert result == '{"sent":7}'
    shown = ok(folder, "jobs")
    assert "send_receipt" in shown
    assert "succeeded" in shown
    page = ok(folder, "job", number)
    assert "Enqueued by " in page
    assert '{"order_id":7}' in page
    assert "Succeeded at attempt 1" in page


def test_a_misspelt_task_is_told_which_one_was_meant(folder: Path, up: Process) -> None:
    assert ok(folder, "jobs", "--task", "send_reciept") == "no job matches; did you mean 'send_receipt'?\n"
    told = ok(folder, "history", "task", "send_reciept")
    assert told == "task send_reciept did nothing in this time; did you mean 'send_receipt'?\n"
    assert "did you mean" not in ok(folder, "jobs", "--task", "send_receipt", "--state", "failed")


def test_many_jobs_can_be_enqueued_at_once_and_listed_in_pages(folder: Path, up: Process) -> None:
    said = ok(folder, "enqueue", "app.py", "send_receipt", '{"order_id": 1}', "--count", "30", "--tag", "bulk")
    assert said.startswith("30 jobs: ")
    first = listing(folder, "jobs", "--tag", "bulk", "--limit", "20")
    older = ok(folder, "jobs", "--tag", "bulk", "--limit", "20").split("--cursor ")[1].strip()
    second = listing(folder, "jobs", "--tag", "bulk", "--limit", "20", "--cursor", older)
    assert len(first) == 20
    assert len(second) == 10
    assert {job["queue"] for job in first + second} == {"mail"}


def test_a_failed_job_says_why_and_can_be_retried(folder: Path, up: Process) -> None:
    failed = run(folder, "enqueue", "app.py", "broken", '{"text": "this"}', "--wait", "--tag", "bad")
    assert failed.returncode == 1
    assert "ValueError: cannot read this" in failed.stderr
    page = ok(folder, "job", failed.stdout.strip())
    assert page.count("Traceback (most recent call last)") == 2
    assert "all 2 attempts failed" in page
    assert f"enqueued again as {int(failed.stdout) + 1}" in ok(folder, "retry", failed.stdout.strip())
    again = wait_for(folder, int(failed.stdout) + 1, lambda job: job["state"] == "failed")
    assert f"to repeat job {failed.stdout.strip()}" in again["why"][0]
    refused = run(folder, "retry", "--tag", "bad")
    assert refused.returncode == 1
    assert "this would retry 1 job: add --yes" in refused.stderr, "the first of the two has been repeated"
    assert "enqueued again as" in ok(folder, "retry", "--tag", "bad", "--yes")
    done = "no job to retry matches; those that have been repeated already do not count"
    assert done in ok(folder, "retry", "--tag", "bad", "--state", "cancelled", "--yes")


def living(folder: Path) -> list[dict[str, Any]]:
    """The workers, once all have started and those that other tests have killed are known to be dead."""
    return asked_until(
        lambda: [row for row in listing(folder, "workers") if row["ended_at"] is None],
        lambda rows: {row["status"] for row in rows} == {"running"} and sum(bool(row["queues"]) for row in rows) == 1,
    )


def test_a_paused_queue_waits_until_it_is_resumed(folder: Path, up: Process) -> None:
    assert living(folder)
    seen = len(up.lines)
    assert "1 worker takes from it" in ok(folder, "workers", "pause", "*", "mail")
    up.line("operator control", after=seen)
    number = ok(folder, "enqueue", "app.py", "send_receipt", '{"order_id": 8}').strip()
    job = listing(folder, "job", number)
    assert job["state"] == "ready"
    assert any("An operator has paused queue mail: pause by" in sentence for sentence in job["why"])
    assert "*/mail paused" in ok(folder, "workers")
    ok(folder, "workers", "resume", "*", "mail")
    wait_for(folder, number, lambda job: job["state"] == "succeeded")
    assert [entry["action"] for entry in listing(folder, "audit", "--action", "worker")[:2]] == [
        "worker.run",
        "worker.pause",
    ]
    assert "nothing was paused" in ok(folder, "workers", "resume", "*", "mail")


def test_waiting_and_running_jobs_are_cancelled(folder: Path, up: Process, tmp_path: Path) -> None:
    waiting = ok(folder, "enqueue", "app.py", "send_receipt", '{"order_id": 9}', "--delay", "1h").strip()
    assert "Scheduled for later: it is due in " in " ".join(listing(folder, "job", waiting)["why"])
    running = ok(folder, "enqueue", "app.py", "until", f'{{"file": "{tmp_path}/never"}}').strip()
    job = wait_for(folder, running, lambda job: job["state"] == "running" and job["progress"] is not None)
    assert job["progress"] == 0.5
    said = ok(folder, "cancel", waiting, running)
    assert f"cancelled: {waiting}" in said
    assert f"asked to stop: {running}" in said
    cancelled = wait_for(folder, running, lambda job: job["state"] == "cancelled")
    assert any("ancelled by" in sentence for sentence in cancelled["why"])
    assert f"already ended or asked to stop: {waiting}" in ok(folder, "cancel", waiting)


def test_every_listing_is_one_json_document_and_a_table(folder: Path, up: Process) -> None:
    ok(folder, "enqueue", "app.py", "send_receipt", '{"order_id": 1}', "--wait")
    assert {row["name"] for row in listing(folder, "queues")} >= {"mail", "default", "fetch"}
    assert any(row["queues"] for row in living(folder))
    assert [row["name"] for row in listing(folder, "schedules")] == ["refresh_prices"]
    assert {row["name"] for row in listing(folder, "config")} >= {"database_url", "lease_seconds"}
    status = listing(folder, "db", "status")
    assert [each["application"] for each in status["chains"]] == ["shop"]
    assert status["chains"][0]["version"] == status["chains"][0]["needed"]
    for command in ("jobs", "workers", "schedules"):
        table = run(folder, command, COLUMNS="100").stdout
        assert "─────" in table
        assert max(len(line) for line in table.splitlines()) <= 100
        assert "\x1b[" not in table


def test_a_schedule_is_paused_resumed_and_run_by_hand(folder: Path, up: Process) -> None:
    ok(folder, "schedules", "pause", "refresh_prices")
    assert listing(folder, "schedules")[0]["paused"]
    ok(folder, "schedules", "resume", "refresh_prices")
    assert not listing(folder, "schedules")[0]["paused"]
    job = wait_for(
        folder, ok(folder, "schedules", "run", "refresh_prices").strip(), lambda job: job["state"] == "succeeded"
    )
    assert job["result"] == {"prices": 3}
    assert "ran schedule refresh_prices by hand" in job["why"][0]


def test_a_queue_is_limited_and_set_free(folder: Path, up: Process) -> None:
    ok(folder, "queues", "limit", "fetch", "30/m")
    assert next(row["rate"] for row in listing(folder, "queues") if row["name"] == "fetch") == 0.5
    ok(folder, "queues", "limit", "fetch", "none")
    assert next(row["rate"] for row in listing(folder, "queues") if row["name"] == "fetch") is None


def test_the_keys_of_a_queue_are_limited_with_a_burst(folder: Path, up: Process) -> None:
    limited = ok(folder, "queues", "limit", "fetch", "30/m", "--per-key", "--burst", "5")
    assert limited == "queue fetch: at most 30/m for each rate key\n"
    assert ok(folder, "queues", "limit", "fetch", "none", "--per-key") == "queue fetch: no limit for each rate key\n"


def test_a_token_for_one_application_is_for_no_other(folder: Path, up: Process) -> None:
    made = run(folder, "token", "create", "ci", "--role", "operator", "--application", "shop")
    assert "role operator of shop" in made.stderr
    assert [row["application"] for row in listing(folder, "token", "list") if row["name"] == "ci"] == ["shop"]
    assert "has no application 'shoop'" in run(folder, "token", "create", "x", "--application", "shoop").stderr


def test_the_database_has_a_shell(folder: Path, up: Process) -> None:
    ok(folder, "enqueue", "app.py", "send_receipt", '{"order_id": 1}', "--wait")
    done = run(folder, "db", "shell", stdin="SELECT 'found', count(*) > 0 FROM job_history;\n")
    assert done.returncode == 0, done.stderr
    assert "found    | t" in done.stdout


def test_a_second_schema_is_made_and_removed_again(folder: Path, up: Process) -> None:
    assert "applied 0001_jobs" in ok(folder, "db", "migrate", "--schema", "second")
    assert "nothing to do" in ok(folder, "db", "migrate", "--schema", "second")
    assert ok(folder, "jobs", "--schema", "second").startswith("no jobs yet: tidemill enqueue")
    assert "undid 0001_jobs" in ok(folder, "db", "downgrade", "--to", "0", "--yes", "--schema", "second")
    assert [each["version"] for each in listing(folder, "db", "status", "--schema", "second")["chains"]] == [0]


def test_an_applications_own_migrations_are_applied_with_ours(folder: Path, up: Process) -> None:
    (folder / "own").mkdir()
    (folder / "own" / "0001_sales.sql").write_text("CREATE TABLE sale (id bigint)")
    (folder / "own" / "0001_sales.down.sql").write_text("DROP TABLE sale")
    declared = 'from pathlib import Path\nfrom tidemill import App\napp = App("shop")\n'
    (folder / "own.py").write_text(declared + 'app.migrations(Path("own"), schema="sales")\n')
    assert "run `tidemill db migrate`" in ok(folder, "db", "status", "own.py")
    assert ok(folder, "db", "migrate", "own.py") == "applied 0001_sales\n"
    assert "nothing to do" in ok(folder, "db", "migrate", "own.py")
    assert listing(folder, "db", "status", "own.py")["chains"][1] == {
        "application": "shop",
        "schema": "sales",
        "migrations": "own",
        "version": 1,
        "needed": 1,
    }
    assert ok(folder, "db", "downgrade", "own.py", "--to", "0", "--yes") == "undid 0001_sales\n"
    assert listing(folder, "db", "status", "own.py")["chains"][1]["version"] == 0


def test_a_second_application_in_the_database_is_named_by_an_option(folder: Path, up: Process) -> None:
    (folder / "second.py").write_text('from tidemill import App\napp = App("second")\n\n@app.task\ndef broken(): ...\n')
    before = {job["id"] for job in listing(folder, "jobs")}
    refused = run(folder, "enqueue", "second.py", "broken")
    assert refused.returncode == 1
    assert "has no application 'second', only shop: run `tidemill db migrate --application second`" in refused.stderr
    try:
        assert "applied 0001_jobs" in ok(folder, "db", "migrate", "second.py")
        number = ok(folder, "enqueue", "second.py", "broken").strip()
        assert [job["id"] for job in listing(folder, "jobs", "--application", "second")] == [int(number)]
        assert {job["id"] for job in listing(folder, "jobs", "--application", "shop")} == before
        asked = run(folder, "jobs")
        assert asked.returncode == 1
        assert "several applications (shop, second): name one of them with --application" in asked.stderr
        assert run(folder, "jobs", TIDEMILL_APPLICATION="second").returncode == 0
        assert run(folder, "token", "list").returncode == 0, "tokens belong to all of them"
        ok(folder, "queues", "limit", "default", "30/m", "--application", "second")
        ok(folder, "queues", "limit", "fetch", "none", "--application", "shop")
        assert [row["application"] for row in listing(folder, "audit", "--limit", "2")] == ["shop", "second"]
        assert {row["application"] for row in listing(folder, "audit", "--application", "second")} == {"second"}
        assert (
            "is the application 'second', and not 'shop'"
            in run(folder, "enqueue", "second.py", "broken", "--application", "shop").stderr
        )
        assert [each["application"] for each in listing(folder, "db", "status")["chains"]] == ["shop", "second"]
    finally:
        ok(folder, "db", "downgrade", "--to", "0", "--yes", "--application", "second")
    assert run(folder, "jobs").returncode == 0


def test_ctrl_c_ends_the_waiting_and_leaves_the_job(folder: Path, up: Process) -> None:
    waiting = Process(folder, "enqueue", "app.py", "broken", "--delay", "1h", "--wait")
    waiting.line("waiting: Scheduled for later")
    waiting.signal(signal.SIGINT)
    assert waiting.wait() == 130
    assert len(waiting.lines) == 2
    ok(folder, "cancel", waiting.lines[0].strip())


def test_a_reader_that_goes_away_is_no_error(folder: Path, up: Process) -> None:
    command = f"{' '.join(TIDEMILL)} jobs --json --limit 1000 | head -c 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}; true"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        timeout=150,
        check=False,
    )
    assert done.stderr == b""


def test_a_killed_worker_is_started_again_and_its_job_finishes(folder: Path, up: Process) -> None:
    number = ok(folder, "enqueue", "app.py", "only_the_second_time").strip()
    wait_for(folder, number, lambda job: job["state"] == "running")
    seen = len(up.lines)
    up.child("jobs").kill()
    assert "it was killed by SIGKILL" in up.line("starting again", after=seen)
    up.line("worker started", after=seen)
    job = wait_for(folder, number, lambda job: job["state"] == "succeeded")
    assert job["result"] == 2
    assert "it was killed by SIGKILL" in ok(folder, "workers")


def test_a_worker_that_the_watchdog_ended_is_started_again(folder: Path, up: Process) -> None:
    seen = len(up.lines)
    failed = run(folder, "enqueue", "app.py", "stuck", "--wait")
    assert failed.returncode == 1
    assert "ran longer than its budget" in failed.stderr
    (job,) = listing(folder, "jobs", "--task", "stuck")
    assert "budget 300ms" in ok(folder, "job", str(job["id"]))
    assert "exit 75" in up.line("starting again", after=seen)
    up.line("worker started", after=seen)


def test_sigterm_lets_running_jobs_finish_and_ends_the_whole_tree(other_up: Process, tmp_path: Path) -> None:
    folder, file = other_up.folder, tmp_path / "go on"
    number = ok(folder, "enqueue", "app.py", "until", f'{{"file": "{file}"}}').strip()
    wait_for(folder, number, lambda job: job["state"] == "running")
    tree = other_up.tree()
    assert len(tree) > 4
    other_up.signal(signal.SIGTERM)
    other_up.line("worker stopping")
    file.touch()
    assert other_up.wait() == 0, other_up.output
    assert all_gone(tree) == []
    assert listing(folder, "job", number)["state"] == "succeeded"


def test_a_second_sigterm_gives_running_jobs_back_at_once(other_up: Process, tmp_path: Path) -> None:
    folder = other_up.folder
    number = ok(folder, "enqueue", "app.py", "until", f'{{"file": "{tmp_path}/never"}}').strip()
    wait_for(folder, number, lambda job: job["state"] == "running")
    tree = other_up.tree()
    other_up.signal(signal.SIGTERM)
    other_up.line("worker stopping")
    other_up.signal(signal.SIGTERM)
    assert other_up.wait() == 0, other_up.output
    assert all_gone(tree) == []
    assert listing(folder, "job", number)["state"] == "ready"
    # A worker that was killed before, with another tree, may be taken for alive until its lease has lapsed.
    job = wait_for(folder, number, lambda job: any("No worker serves queue default" in each for each in job["why"]))
    assert any("Its worker stopped before it had finished" in sentence for sentence in job["why"])
    ok(folder, "cancel", number)


def test_when_up_is_killed_nothing_of_its_tree_remains(other_up: Process) -> None:
    tree = other_up.tree()
    other_up.signal(signal.SIGKILL)
    assert all_gone(tree) == []


def test_a_worker_that_cannot_start_ends_the_tree_with_one_message(other_folder: Path) -> None:
    (other_folder / "shy.py").write_text(f'import sys\nassert "jobs" not in sys.argv, "not here"\n{APP}')
    up = Process(other_folder, "up", "shy.py")
    assert up.wait() == 1
    assert up.output.count("error: shy.py cannot be imported: AssertionError: not here") == 1
    up.line("cannot be started: giving up")
    assert "starting again" not in up.output


def test_the_roles_run_as_processes_of_their_own(other_folder: Path) -> None:
    with contextlib.ExitStack() as stack:
        maintenance = Process(other_folder, "maintenance", "app.py")
        stack.callback(maintenance.close)
        worker = Process(
            other_folder, "worker", "app.py", "--queue", "mail", "--queue", "default", "--max-concurrency", "3"
        )
        stack.callback(worker.close)
        worker.line("worker started")
        maintenance.line("scheduler started")
        served = {row["pid"]: (row["queues"], row["max_concurrency"]) for row in listing(other_folder, "workers")}
        assert served[worker.child("jobs").pid] == (["mail", "default"], 3)
        run(other_folder, "enqueue", "app.py", "stuck", "--wait")
        assert "exit 75" in worker.line("starting again")
        for process in (worker, maintenance):
            process.signal(signal.SIGTERM)
            assert process.wait() == 0, process.output


def test_on_a_terminal_up_shows_queues_and_progress_until_ctrl_c(other_folder: Path, tmp_path: Path) -> None:
    master, terminal = pty.openpty()
    command = [*TIDEMILL, "up", "app.py"]
    process = subprocess.Popen(
        command,
        cwd=other_folder,
        env=environment(COLUMNS="100", LINES="30", TERM="xterm"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        seen = read_until(master, b"", b"worker started")
        ok(other_folder, "enqueue", "app.py", "until", f'{{"file": "{tmp_path}/go"}}')
        seen = read_until(master, seen, b"waits for ")
        assert b"done/min" in seen
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        (tmp_path / "go").touch()
        process.send_signal(signal.SIGINT)
        read_until(master, b"", b"worker stopped")
        assert process.wait(PATIENCE) == 0
        assert all_gone(tree) == []
    finally:
        process.kill()
        process.wait()
        os.close(master)


def test_a_warning_of_a_command_is_on_stderr_so_that_its_output_can_be_parsed() -> None:
    program = (
        "import structlog, tidemill.cli.main as cli\n"
        "cli.run(['--version'])\n"
        "structlog.get_logger('tidemill.runs').warning('changes are not heard')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "not heard" in done.stderr
    assert "not heard" not in done.stdout
