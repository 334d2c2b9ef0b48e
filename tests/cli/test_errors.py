"""Whatever is wrong with a command, it says so in one readable message and exits with a status that is not 0."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import APP, Process, make_folder, ok, run

TWO_APPS = 'from tidemill import App\none = App("one")\ntwo = App("two")\n'
NO_TASKS = 'from tidemill import App\napp = App("idle")\n'

# What is wrong, the command, and what the message must say. `{nowhere}` is a server that does not exist.
SENTENCES: list[tuple[str, list[str], str]] = [
    ("unknown task", ["enqueue", "app.py", "send_recipt", "{}"], "there is no task 'send_recipt'"),
    ("malformed JSON", ["enqueue", "app.py", "send_receipt", "{order_id: 7}"], "are not JSON"),
    ("JSON that is no object", ["enqueue", "app.py", "send_receipt", "[7]"], "are not a JSON object"),
    ("wrong type of argument", ["enqueue", "app.py", "send_receipt", '{"order_id": "x"}'], "Expected `int`"),
    ("missing argument", ["enqueue", "app.py", "send_receipt"], "the argument 'order_id' is missing"),
    (
        "unknown argument",
        ["enqueue", "app.py", "send_receipt", '{"order_id": 7, "to": 1}'],
        "there is no argument 'to'",
    ),
    ("bad delay", ["enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--delay", "soon"], "not a length of time"),
    ("bad deadline", ["enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--deadline", "-3"], "length of time"),
    ("bad moment", ["enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--at", "noon"], "is not a moment"),
    ("bad priority", ["enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--priority", "12"], "outside 0 to 9"),
    ("window without a key", ["enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--unique-for", "1h"], "needs a"),
    ("bad queue name", ["enqueue", "app.py", "send_receipt", '{"order_id": 7}', "--queue", " x"], "not a queue name"),
    ("a task in place of the application", ["enqueue", "send_receipt", "{}"], "write the application as app.py"),
    ("unknown App", ["enqueue", "app.py:ap", "send_receipt", "{}"], "has no App called 'ap'; it has app"),
    ("dead letter that is gone", ["stream", "replay", "--id", "d7"], "no dead letter matches d7"),
    ("move to a server that does not exist", ["db", "move", "--to", "{nowhere}"], "does not answer"),
    ("matcher that is none", ["monitor", "silence", "hot"], "'hot' is not NAME=VALUE"),
    ("file with a near name", ["up", "ap.py"], "there is no file ap.py; did you mean 'app.py'?"),
    ("stream that does not run", ["stream", "status", "letters"], "no stream 'letters' runs; there are none"),
    ("unknown monitor", ["monitor", "status", "ships"], "there is no monitor 'ships'; there are none"),
    ("state without its application", ["explain", "pages/a.html"], "name the application (--app app.py)"),
    ("no worker of this number", ["workers", "show", "999"], "there is no worker 999"),
    ("no number of a worker", ["workers", "show", "vm"], "is not a worker: write its number"),
    ("missing file", ["up", "nothing.py"], "there is no file nothing.py"),
    ("backup that is not there", ["db", "restore", "nothing"], "is not a complete backup: there is no such folder"),
    ("folder that cannot be made", ["db", "backup", "/proc/nothing"], "/proc/nothing cannot be made for the backup: "),
    ("dag file that is not there", ["dag", "check", "nothing.yaml"], "there is no dag file nothing.yaml"),
    (
        "name of a task to explain",
        ["explain", "broken", "--app", "app.py"],
        "'broken' is a task: explain one of its jobs",
    ),
    ("no application at all", ["enqueue", "", "f", "{}"], "say which application: app.py"),
    ("missing module", ["worker", "no.such.module"], "cannot be imported"),
    ("file without App", ["up", "empty.py"], "declares no App"),
    ("file with two Apps", ["maintenance", "two.py"], "declares several Apps (one, two)"),
    ("App without tasks", ["up", "idle.py"], "declares no work"),
    ("file with an error", ["up", "typo.py"], "typo.py cannot be imported: SyntaxError"),
    ("file that fails", ["worker", "fails.py"], "ZeroDivisionError: division by zero (fails.py, line 1)"),
    ("no concurrency", ["worker", "app.py", "--max-concurrency", "0"], "would run nothing"),
    ("no workers", ["up", "app.py", "--workers", "0"], "at least one worker"),
    ("unknown state", ["jobs", "--state", "sleeping"], "there is no job state 'sleeping'"),
    ("unknown state to retry", ["retry", "--state", "sleeping", "--yes"], "there is no job state 'sleeping'"),
    ("no rows wanted", ["jobs", "--limit", "0"], "would show nothing"),
    ("unknown job", ["job", "999999"], "there is no job 999999"),
    ("impossible job", ["job", "99999999999999999999"], "there is no job 99999999999999999999"),
    ("unknown job to retry", ["retry", "999999"], "there is no job 999999"),
    ("unknown job to cancel", ["cancel", "1", "999999"], "there is no job"),
    ("nothing to retry named", ["retry"], "say which jobs to retry"),
    ("both ids and filter", ["cancel", "1", "--queue", "mail"], "say which jobs to cancel"),
    ("unknown schedule", ["schedules", "pause", "nightly"], "there is no schedule 'nightly'"),
    ("unknown schedule to run", ["schedules", "run", "nightly"], "there is no schedule 'nightly'"),
    ("bad rate", ["queues", "limit", "mail", "fast"], "is not a rate above zero"),
    ("impossible version", ["db", "downgrade", "--to", "99", "--yes"], "there is no schema version 99"),
    ("nobody to ask", ["db", "downgrade", "--to", "0"], "add --yes to do it"),
    ("bad schema name", ["jobs", "--schema", "No Such"], "schema 'No Such' is not usable"),
    ("schema that is not there", ["jobs", "--schema", "elsewhere"], "run `tidemill db migrate`"),
    ("other kind of database", ["jobs", "--database-url", "mysql://x/y"], "must start with postgresql://"),
    ("unreadable port", ["jobs", "--database-url", "postgresql://x:port/y"], "the database URL cannot be"),
    ("no server there", ["jobs", "--database-url", "{nowhere}"], "does not answer"),
    ("no database", ["jobs", "--directory", "new"], "there is no database here yet"),
    ("no database to enqueue to", ["enqueue", "app.py", "broken", "--directory", "new"], "no database here yet"),
    ("no database to shell into", ["db", "shell", "--directory", "new"], "there is no database here yet"),
    ("a file as directory", ["jobs", "--directory", "app.py"], "a file is in the way"),
    ("a file as directory of up", ["up", "app.py", "--directory", "app.py"], "a file is in the way"),
    ("bad directory to migrate", ["db", "migrate", "--directory", "/proc/nothing"], "cannot run the embedded"),
]

USAGE: list[tuple[list[str], str]] = [
    (["jbos"], "did you mean `tidemill jobs`?"),
    (["alerts"], "did you mean `tidemill monitor alerts`?"),
    (["stream", "stauts"], "did you mean `tidemill stream status`?"),
    (["stream", "list"], "there are dead-letters, disable, drain"),
    (["jobs", "--sate", "ready"], "--sate"),
    (["jobs", "--limit", "many"], '--limit: "many" is not a whole number; see'),
    (["job"], "say ID: `tidemill job ID ...`; see"),
    (["jobs", "--limit"], "--limit needs a value; see"),
    (["explain", "--why-not", "hot"], "--why-not needs 2 values; see"),
    (["job", "r1"], "'r1' is not a job: `tidemill explain r1`"),
    (["job", "x"], "'x' is not a job: write it as `tidemill jobs` shows it, such as 12"),
    (["jobs", "--run", "x1"], "'x1' is not a run: write it as `tidemill runs`"),
    (["monitor", "ack", "first"], "'first' is not an alert"),
    (["jobs", "ready"], "'ready' is an argument too many"),
    (["enqueue", "app.py"], "TASK"),
    (
        ["start", "app.py", "Publish", "{}"],
        "'{}' is an argument too many; the application is an option of this command: --app app.py",
    ),
    (
        ["enqueue", "greet", "{}", "--app", "app.py"],
        "the application comes first here: `tidemill enqueue app.py ...`; see `tidemill enqueue --help`",
    ),
    (["stream", "run", "--app", "app.py"], "the application comes first here: `tidemill stream run app.py ...`"),
    (["jobs", "--app", "app.py"], "leave out --app here; see `tidemill jobs --help`"),
    (["workers", "pause", "*"], "QUEUE"),
    (["workers", "pasue", "*", "mail"], "'pasue'"),
    (["db", "downgrade"], "--to"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A project with a database, kept running so that the commands find it at once."""
    folder = make_folder(tmp_path_factory.mktemp("errors"))
    (folder / "empty.py").write_text("")
    (folder / "two.py").write_text(TWO_APPS)
    (folder / "idle.py").write_text(NO_TASKS)
    (folder / "typo.py").write_text("def f(:\n")
    (folder / "fails.py").write_text("1 / 0\n")
    maintenance = Process(folder, "maintenance", TIDEMILL_LOG_LEVEL="info")
    maintenance.line("migrated")
    yield folder
    maintenance.close()


@pytest.fixture(scope="module")
def nowhere() -> Iterator[str]:
    """The URL of a server that is not there: a port that is taken by nobody who listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"postgresql://somebody:secret@127.0.0.1:{taken.getsockname()[1]}/shop"


def assert_one_message(done: subprocess.CompletedProcess[str], said: str, status: int = 1) -> None:
    assert done.returncode == status, done.stderr
    assert done.stdout == ""
    assert said in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("command", "said"), [case[1:] for case in SENTENCES], ids=[case[0] for case in SENTENCES])
def test_what_cannot_be_done_is_said_in_one_sentence(folder: Path, nowhere: str, command: list[str], said: str) -> None:
    done = run(folder, *(part.replace("{nowhere}", nowhere) for part in command))
    assert_one_message(done, said)
    assert not (folder / "new").exists()


@pytest.mark.parametrize(("command", "said"), USAGE, ids=[" ".join(case[0]) for case in USAGE])
def test_what_is_not_understood_exits_with_2_and_names_the_help(folder: Path, command: list[str], said: str) -> None:
    done = run(folder, *command)
    assert_one_message(done, said, status=2)
    assert "--help" in done.stderr


def test_roles_wait_for_a_server_until_they_are_stopped_and_other_commands_do_not(folder: Path, nowhere: str) -> None:
    commands = (["up", "app.py"], ["worker", "app.py"], ["maintenance"])
    started = [Process(folder, *command, "--database-url", nowhere) for command in commands]
    for process in started:
        assert "127.0.0.1:" in process.line("waiting for the database")
        process.signal(signal.SIGTERM)
        assert process.wait() == 0, process.output
        assert "secret" not in process.output
    migrate = Process(folder, "db", "migrate", "--database-url", nowhere)
    assert migrate.wait() == 1
    assert migrate.output.startswith("error: the database at 127.0.0.1:")
    assert len(migrate.lines) == 1


def test_a_database_that_does_not_exist_or_refuses_is_named(folder: Path) -> None:
    socket_folder = folder / ".tidemill" / "run"
    there = f"postgresql:///absent?host={socket_folder}&user=tidemill"
    assert_one_message(run(folder, "jobs", "--database-url", there), 'database "absent" does not exist')
    stranger = f"postgresql:///tidemill?host={socket_folder}&user=stranger"
    assert_one_message(run(folder, "jobs", "--database-url", stranger), "the database refused the login")


def test_a_setting_that_means_nothing_is_named_with_its_origin(folder: Path) -> None:
    assert_one_message(
        run(folder, "config", TIDEMILL_LEASE_SECONDS="long"), "lease_seconds from TIDEMILL_LEASE_SECONDS"
    )
    assert_one_message(run(folder, "jobs", TIDEMILL_LOG_LEVEL="loud"), "log_level 'loud'")


def test_an_unwritable_directory_is_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "shop")
    done = run(folder, "db", "migrate", "--directory", "/sys/tidemill")
    assert_one_message(done, "cannot run the embedded PostgreSQL under /sys/tidemill")


def test_a_password_is_never_shown(folder: Path) -> None:
    shown = ok(folder, "config", "--database-url", "postgresql://me:secret@host/db")
    assert "postgresql://me:***@host/db" in shown
    assert ":secret@" not in ok(folder, "config", "--json", "--database-url", "postgresql://me:secret@host/db")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on which there is room for a database, and hardly more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount")
    done = subprocess.run([mount or "false", "-t", "tmpfs", "-o", "size=120m", "none", str(disk)], check=False)
    if done.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (needs root): a full disk cannot be had")
    yield make_folder(disk / "shop")
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_too_small_for_a_database_is_said_in_one_message(small_disk: Path) -> None:
    fill(small_disk, leave=5_000_000)
    done = run(small_disk, "up", "app.py")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert "No space left on device" in done.stderr
    assert "the disk is full: free some space and try again" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_disk_that_fills_up_later_is_said_in_one_message(small_disk: Path) -> None:
    ok(small_disk, "db", "migrate")
    fill(small_disk, leave=2_000_000)
    text = "x" * 100_000
    done = run(small_disk, "enqueue", "app.py", "broken", f'{{"text": "{text}"}}', "--count", "200")
    assert_one_message(done, "No space left on device")


def fill(folder: Path, *, leave: int) -> None:
    free = os.statvfs(folder)
    with open(folder / "ballast", "wb") as ballast:
        os.posix_fallocate(ballast.fileno(), 0, free.f_bavail * free.f_frsize - leave)


def test_an_application_that_breaks_later_does_not_stop_what_runs(folder: Path) -> None:
    broken = folder / "later.py"
    broken.write_text(APP)
    done = run(folder, "enqueue", "later.py", "send_receipt", '{"order_id": 1}')
    assert done.returncode == 0
    broken.write_text("from tidemill import nothing\n")
    assert_one_message(run(folder, "enqueue", "later.py", "send_receipt", '{"order_id": 1}'), "cannot be imported")
