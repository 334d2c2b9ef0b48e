"""The command line through a running server: the same words as from the database, with a token's rights and no more."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.cli import Process, asked_until, make_folder, ok, run
from tests.support.relay import make_certificate, relay
from tests.support.web import WEB_APP
from tidemill.ops.operator.cursor import write_cursor

READS = (
    "jobs", "jobs --limit 1", "jobs --state failed --task send", f"jobs --cursor {write_cursor(2)}", "job 1", "job 2",
    "queues", "workers", "schedules", "runs", "runs --workflow order", "run r1", "run r2", "run r2 --at 1", "inputs",
    "audit", "monitor alerts", "monitor status", "runs --shape dag", "stream status", "stream dead-letters",
    "runs --shape dag --state running --workflow order",
)  # fmt: skip

VERBS = (
    'enqueue send {"order":1}', "retry 2", "retry --task send --yes", "cancel 1", "cancel --tag waits --yes",
    "cancel r1", "workers pause * slow", "queues limit slow 5/m", "schedules pause yearly", "schedules run yearly",
    'send r1 Word {"word":"x"}', "fork r1 --at 1", 'dag submit r2 approve {"answer":"yes"}', "monitor ack 1",
    "monitor note 1 seen", "dag start order", "dag rerun r2", "stream replay --yes", "monitor silence --end 1",
)  # fmt: skip


class Mill(NamedTuple):
    """What runs in a folder: everything and a server for this machine, and a server that asks for tokens."""

    folder: Path
    elsewhere: Path
    open: str
    asking: str
    tokens: dict[str, str]

    def there(self, *arguments: str, role: str | None = None, **changes: str) -> Any:
        """A command in a folder where nothing is, through a server: the open one, or with a token of a role."""
        if role is not None:
            changes = {"TIDEMILL_TOKEN": self.tokens[role], **changes}
        return run(self.elsewhere, *arguments, **{"TIDEMILL_SERVER": self.asking if role else self.open, **changes})

    def told(self, *arguments: str) -> Any:
        done = self.there(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def until(self, fits: Callable[[Any], Any], *arguments: str) -> Any:
        """What a command tells, once it is as it should be."""
        return asked_until(lambda: self.told(*arguments), fits)


@pytest.fixture(scope="module")
def mill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mill]:
    folder = make_folder(tmp_path_factory.mktemp("mill"), WEB_APP.read_text() + "\napp.monitor(make_ovens())\n")
    (folder / "ovens.jsonl").touch()
    up = Process(folder, "up", "app.py", "--trust-local")
    asking = None
    try:
        url = up.line("serving http").split()[-1]
        up.line("worker started")
        tokens = {
            role: ok(folder, "token", "create", f"the {role}", "--role", role).strip()
            for role in ("viewer", "operator")
        }
        asking = Process(folder, "server", "app.py", "--port", "0")
        asked = asking.line("serving http").split()[-1]
        made = Mill(folder, tmp_path_factory.mktemp("elsewhere"), url, asked, tokens)
        with httpx.Client(base_url=f"{url}/api/v1", timeout=150) as client:
            client.post("/jobs", json={"task": "send", "args": {"order": 1}, "tags": ["first"]}).raise_for_status()
            client.post("/jobs", json={"task": "send", "args": {"order": 2, "bad": True}}).raise_for_status()
            waits = {"task": "count", "delay": "1h", "tags": ["waits"]}
            client.post("/jobs", json=waits).raise_for_status()
            for workflow in ("Asking", "order"):
                client.post("/runs", json={"workflow": workflow, "args": {"order": 7}}).raise_for_status()
        made.until(lambda job: job["state"] == "failed", "job", "2")
        made.until(lambda run: len(run["ticks"]) == 2, "run", "r1")
        made.until(lambda asked: asked, "dag", "inputs")
        yield made
    finally:
        if asking is not None:
            asking.close()
        up.close()


def settled(told: Any) -> Any:
    """Without what changes while one looks."""
    if isinstance(told, list):
        return [settled(each) for each in told]
    return {name: value for name, value in told.items() if name not in ("seen_at", "lease_until")}


def test_a_server_tells_the_same_as_the_database(mill: Mill) -> None:
    for command in READS:
        words = (*command.split(), "--json")
        # Something may happen between the two looks: a worker says that it is idle again, a run is let go.
        mill.until(lambda told, words=words: settled(told) == settled(json.loads(ok(mill.folder, *words))), *words[:-1])
    for command in ("jobs", "queues", "workers", "schedules", "runs", "audit", "inputs", "runs --shape dag"):
        tables = [ok(mill.folder, *command.split()), mill.there(*command.split()).stdout]
        heads = [table.splitlines()[0].split() for table in tables]
        assert heads[0] == heads[1], command


def test_a_run_of_a_dag_looks_the_same(mill: Mill) -> None:
    pages = [ok(mill.folder, "run", "r2"), mill.there("run", "r2").stdout]
    trees = [[line.split() for line in page.splitlines() if "─ " in line] for page in pages]
    assert [[word for word in line if word[-1:] not in "ms"] for line in trees[0]] == [
        [word for word in line if word[-1:] not in "ms"] for line in trees[1]
    ]
    assert [line[1:3] for line in trees[1]] == [["pack", "succeeded"], ["approve", "waiting"], ["ship", "pending"]]
    assert "It waits for an answer to 'approve'" in pages[1]


def test_jobs_are_enqueued_cancelled_and_retried_under_the_name_of_a_token(mill: Mill) -> None:
    done = mill.there("enqueue", "send", '{"order": 9}', "--tag", "mine", "--wait", role="operator")
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, '{"sent":9}'), done.stderr
    failed = mill.there("enqueue", "send", '{"order": 9, "bad": true}', "--wait", "--json", role="operator")
    assert (failed.returncode, json.loads(failed.stdout)["state"]) == (1, "failed")

    late = mill.there("enqueue", "count", "--delay", "1h", "--count", "3", "--tag", "late")
    assert late.stdout.startswith("3 jobs: ")
    ids = [job["id"] for job in mill.told("jobs", "--tag", "late")]
    one = mill.there("cancel", str(ids[0]), role="operator")
    assert one.stdout == f"cancelled: {ids[0]}\n"
    assert mill.there("cancel", str(ids[0])).stdout == f"already ended or asked to stop: {ids[0]}\n"
    unsure = mill.there("cancel", "--tag", "late", role="operator")
    assert (unsure.returncode, unsure.stderr) == (1, "error: this would cancel 2 jobs: add --yes to do it\n")
    assert mill.there("cancel", "--tag", "late", "--yes", role="operator").stdout == "cancelled: 2 jobs\n"
    assert mill.there("cancel", "--tag", "late", "--yes", role="operator").stdout == "no job to cancel matches\n"
    again = mill.there("retry", str(ids[1]), role="operator").stdout.removeprefix("enqueued again as ").strip()
    assert f"to repeat job {ids[1]}" in mill.told("job", again)["why"][0]

    trail = {entry["action"]: entry["who"] for entry in mill.told("audit", "--limit", "9")}
    assert {"job.enqueue", "job.cancel", "job.retry"} <= set(trail)
    assert trail["job.cancel"] == trail["job.retry"] == "the operator (token 2)"
    assert {"tag": "late"}.items() <= next(
        entry["after"]["filter"] for entry in mill.told("audit", "--limit", "9") if "filter" in (entry["after"] or {})
    ).items()


def test_a_token_for_one_application_is_made_through_a_server(mill: Mill) -> None:
    made = mill.there("token", "create", "ci", "--application", "test")
    assert "role viewer of test" in made.stderr
    assert {row["application"] for row in mill.told("token", "list") if row["name"] == "ci"} == {"test"}


def test_workers_queues_and_schedules_are_told_what_to_do(mill: Mill) -> None:
    assert "*/slow: paused, was running; 1 worker takes from it" in mill.there("workers", "pause", "*", "slow").stdout
    assert "*/slow paused" in mill.there("workers").stdout
    assert "runs again, was paused" in mill.there("workers", "resume", "*", "slow").stdout
    assert "nothing was paused" in mill.there("workers", "resume", "*", "slow").stdout
    assert mill.there("queues", "limit", "slow", "30/m").stdout == "queue slow: at most 30/m\n"
    assert next(row["rate"] for row in mill.told("queues") if row["name"] == "slow") == 0.5
    assert mill.there("queues", "limit", "slow", "none").stdout == "queue slow: no limit\n"
    assert mill.there("schedules", "pause", "yearly").stdout == "schedule yearly is paused\n"
    assert mill.told("schedules")[0]["paused"]
    assert mill.there("schedules", "resume", "yearly").returncode == 0
    job = mill.told("job", mill.there("schedules", "run", "yearly").stdout.strip())
    assert "ran schedule yearly by hand" in job["why"][0]


def test_runs_are_forked_answered_and_cancelled(mill: Mill) -> None:
    fork = mill.there("fork", "r1", "--at", "2").stdout.split()[1]
    assert "Wrod is not an event class" in mill.there("send", fork, "Wrod", "{}").stderr
    assert mill.there("send", fork, "Word", '{"word": "mill"}').stdout == f"Word sent to run {fork}\n"
    ended = mill.until(lambda run: run["state"] == "succeeded", "run", fork)
    assert ended["result"]["word"] == "mill"
    assert [tick["kind"] for tick in ended["ticks"]][:2] == ["started", "noted"]
    assert json.loads(mill.there("run", fork, "--at", "2").stdout)["status"] == "running"

    order, again = (
        mill.there("dag", "start", "order", "--args", '{"order": 8}', "--unique-key", "eight", role="operator")
        for _ in "12"
    )
    assert (order.stderr, again.stderr) == ("", f"nothing new: run {order.stdout.strip()} has this key\n")
    order = order.stdout.strip()
    mill.until(lambda asked: asked, "dag", "inputs", "--run", order)
    assert "does not fit" in mill.there("dag", "submit", order, "approve", '{"answer": "perhaps"}').stderr
    assert mill.there("dag", "submit", order, "approve", '{"answer": "yes"}').stdout.startswith(f"run {order} has its")
    followed = mill.there("run", order, "--follow")
    assert (followed.returncode, followed.stdout.splitlines()[-1]) == (0, '{"ship":{"sent":2}}')
    rerun = mill.there("dag", "rerun", order, "--from", "ship", "--edit", '{"order": 5}', "--follow")
    assert (rerun.returncode, rerun.stdout.splitlines()[-1]) == (0, '{"ship":{"sent":5}}'), rerun.stderr
    assert [run["id"] for run in mill.told("runs", "--shape", "dag", "--state", "succeeded", "--limit", "1")] == [
        int(rerun.stderr.split("run r")[1].split()[0])
    ]
    assert "takes no events: answer what it asks" in mill.there("send", order, "Word", "{}").stderr
    for what, why in (
        ("order --app app.py", "leave out --app app.py"),
        ("orders", "declares no dag 'orders', but order"),
        ("nightly.yaml", "there is no dag file nightly.yaml"),
    ):
        refused = mill.there("dag", "start", *what.split())
        assert (refused.returncode, why in refused.stderr) == (1, True), refused.stderr

    again = mill.there("fork", "r1", "--at", "2").stdout.split()[1]
    assert mill.there("cancel", again).stdout == f"run {again} was asked to end\n"
    mill.until(lambda run: run["state"] == "cancelled", "run", again)


def test_a_dag_of_a_file_is_started_through_a_server(mill: Mill, tmp_path: Path) -> None:
    file = tmp_path / "filed.yaml"
    file.write_text("name: filed\nnodes:\n  - {name: pack, task: send, args: {order: 3}}\n")
    followed = mill.there("dag", "start", str(file), "--follow", role="operator")
    assert (followed.returncode, followed.stdout.splitlines()[-1]) == (0, '{"pack":{"sent":3}}'), followed.stderr


def test_an_event_needs_no_application(mill: Mill) -> None:
    fork = mill.there("fork", "r1", "--at", "2").stdout.split()[1]
    directory = str(mill.folder / ".tidemill")
    sent = run(mill.elsewhere, "send", fork, "Word", '{"word": "tide"}', "--directory", directory)
    assert (sent.returncode, sent.stdout.startswith(f"Word sent to run {fork}; whether it fits")) == (0, True)
    assert mill.until(lambda run: run["state"] == "succeeded", "run", fork)["result"]["word"] == "tide"
    assert "run.send" in [entry["action"] for entry in mill.told("audit", "--limit", "3")]


def test_a_token_that_only_reads_does_nothing(mill: Mill) -> None:
    before = mill.told("audit", "--limit", "1")
    for verb in VERBS:
        done = mill.there(*verb.split(), role="viewer")
        assert (done.returncode, done.stdout) == (1, ""), verb
        assert done.stderr == "error: this needs the role operator, and yours is viewer\n", verb
    assert mill.told("audit", "--limit", "1") == before
    assert mill.there("jobs", role="viewer").returncode == 0


def test_who_is_not_let_in_is_told_why_and_no_token_is_shown(mill: Mill, tmp_path: Path) -> None:
    kept = tmp_path / "token"
    kept.write_text(f"{mill.tokens['viewer']}\n")
    server = {"TIDEMILL_SERVER": mill.asking}
    assert mill.there("jobs", "--token-file", str(kept), **server).returncode == 0
    assert mill.there("jobs", **server, TIDEMILL_TOKEN_FILE=str(kept)).returncode == 0
    for said, changes in (
        ("asks for a token: put it into TIDEMILL_TOKEN", {}),
        ("rejects this token", {"TIDEMILL_TOKEN": "tm_wrongwrongwrong"}),
        ("TIDEMILL_TOKEN does not hold a token", {"TIDEMILL_TOKEN": "tm_wrong wrong"}),
        ("cannot be read: No such file", {"TIDEMILL_TOKEN_FILE": str(tmp_path / "none")}),
        (
            "use https, or allow it with --plain-http",
            {"TIDEMILL_TOKEN": "tm_wrong", "TIDEMILL_SERVER": "http://192.0.2.1"},
        ),
    ):
        refused = mill.there("jobs", **{**server, **changes})
        assert (refused.returncode, refused.stdout) == (1, "")
        assert said in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
        assert "wrong" not in refused.stderr.replace("it is wrong", "")


def test_a_server_that_is_not_there_or_is_another_one_is_named(mill: Mill) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{taken.getsockname()[1]}"
        gone = mill.there("jobs", TIDEMILL_SERVER=nowhere)
    assert (gone.returncode, gone.stderr) == (1, f"error: no server answers at {nowhere}: Connection refused\n")
    with relay(None) as other:
        strange = mill.there("jobs", "--server", other.url)
    assert strange.stderr == f"error: {other.url} is not a Tidemill server: 200 OK\n"
    assert "write it as http://" in mill.there("jobs", "--server", "127.0.0.1:7433").stderr
    assert "there is no job 999" in mill.there("job", "999").stderr
    assert "there is no task 'sned'" in mill.there("enqueue", "sned").stderr
    assert "leave out 'app.py'" in mill.there("enqueue", "app.py", "send", "{}").stderr


def test_what_was_asked_for_is_done_once_though_the_answer_was_lost(mill: Mill) -> None:
    with relay(mill.asking, lost=2) as lossy:
        done = mill.there("enqueue", "count", "--tag", "once", role="operator", TIDEMILL_SERVER=lossy.url)
    assert done.returncode == 0, done.stderr
    assert [job["id"] for job in mill.told("jobs", "--tag", "once")] == [int(done.stdout)]
    keys = {headers["Idempotency-Key"] for method, _, headers in lossy.asked if method == "POST"}
    assert (len(lossy.asked), len(keys)) == (3, 1)
    began = mill.there("monitor", "silence", "trigger=hot", "--monitor", "ovens", role="operator")
    assert began.returncode == 0, began.stderr
    silence = began.stdout.split()[1]
    with relay(mill.asking, lost=1) as lossy:
        ended = mill.there("monitor", "silence", "--end", silence, role="operator", TIDEMILL_SERVER=lossy.url)
    assert (ended.stdout, len(lossy.asked)) == (f"silence {silence} has ended\n", 2), ended.stderr
    assert "no silence" in mill.there("monitor", "silence", "--end", silence).stderr, "it is not there for others"


def test_a_certificate_must_be_trusted(mill: Mill, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here to make a certificate with")
    certificate = make_certificate(tmp_path, openssl)
    with relay(mill.asking, certificate=certificate) as secure:
        wary = mill.there("jobs", role="viewer", TIDEMILL_SERVER=secure.url)
        assert "its certificate is not trusted" in wary.stderr
        assert secure.asked == []
        trusting = mill.there("jobs", role="viewer", TIDEMILL_SERVER=secure.url, SSL_CERT_FILE=str(certificate[0]))
    assert trusting.returncode == 0, trusting.stderr
    with relay(mill.asking) as plain:
        misled = mill.there("jobs", role="viewer", TIDEMILL_SERVER=plain.url.replace("http://", "https://"))
    assert "it does not speak TLS; write its address with http://" in misled.stderr


def test_what_makes_no_sense_through_a_server_says_so_in_one_sentence(mill: Mill) -> None:
    for command in ("worker app.py", "up app.py", "db status", "maintenance"):
        done = run(mill.folder, *command.split(), TIDEMILL_SERVER=mill.open)
        assert (done.returncode, done.stdout) == (1, ""), command
        assert done.stderr.startswith("error: this command works on the database itself"), (command, done.stderr)
        assert len(done.stderr.splitlines()) == 1
    assert run(mill.folder, "db", "status", "--directory", ".tidemill", TIDEMILL_SERVER=mill.open).returncode == 0
    assert mill.told("token", "list") == json.loads(ok(mill.folder, "token", "list", "--json"))
    both = run(mill.folder, "jobs", "--directory", ".tidemill", "--server", mill.open)
    assert both.stderr == "error: give --server or a database, not both\n"
