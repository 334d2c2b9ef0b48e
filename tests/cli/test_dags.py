"""Dags from the command line, as their authors and operators have them: real processes on a real database."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.cli import PATIENCE, TIDEMILL, Process, asked_until, environment, listing, make_folder, ok, run

APP = """
import asyncio
from pathlib import Path

from tidemill import App, current_job
from tidemill.dags import Dag, input_node, node, ref
from tidemill.flows import StartEvent, StopEvent, Workflow, step

app = App("etl")


@app.task(name="etl.extract", queue="fetch")
async def extract(day: str) -> dict:
    return {"day": day, "rows": 3, "files": ["a", "b", "c"]}


@app.task(name="etl.until")
async def until(file: str) -> str:
    current_job().report(0.25, f"waits for {file}")
    while not Path(file).exists():
        await asyncio.sleep(0.01)
    return "seen"


@app.task(name="etl.load")
def load(rows: int) -> dict:
    if rows < 0:
        raise ValueError(f"cannot load {rows} rows")
    return {"loaded": rows}


@app.workflow
class Plain(Workflow):
    @step
    async def only(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=1)


asked = app.dag(
    Dag(
        "asked",
        nodes=[
            node("extract", "etl.extract", args={"day": ref("run.day")}),
            input_node(
                "approve",
                prompt="Load {{$.extract.rows}} rows of {{$.run.day}}?",
                schema={"type": "object", "properties": {"rows": {"type": "integer"}}, "required": ["rows"]},
                timeout="1h",
            ),
            node("load", "etl.load", args={"rows": ref("approve.rows")}),
            node("report", "etl.extract", deps=["load"], args={"day": ref("run.day")}, skip_if="load.loaded == 0"),
        ],
    )
)


if __name__ == "__main__":
    print(asyncio.run(app.start(Plain)).id)
"""

FILE = """\
name: gated
nodes:
  - {name: gate, task: etl.until, args: {file: {$from: run.file}}}
  - {name: list, task: etl.extract, deps: [gate], args: {day: monday}}
  - {name: each, task: etl.load, map: {$from: list.files}, args: {rows: {$from: index}}, max_concurrency: 2}
  - name: inner
    deps: [each]
    dag:
      name: inner
      nodes:
        - {name: first, task: etl.load, args: {rows: 1}}
        - {name: second, task: etl.load, deps: [first], args: {rows: 2}}
result: {each: {$from: each}}
"""

BAD = """\
name: bad
nodes:
  - {name: a, task: etl.extract, deps: [zz]}
  - {name: b, task: etl.load, budget: soon}
  - {name: a, task: etl.load}
result: {$from: nothing}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Path]:
    folder = make_folder(tmp_path_factory.mktemp("etl"), APP, module_database_url)
    (folder / "gated.yaml").write_text(FILE)
    (folder / "bad.yaml").write_text(BAD)
    (folder / "broken.yaml").write_text("name: [x\n")
    (folder / "elsewhere.yaml").write_text(
        "name: elsewhere\nnodes:\n  - {name: slow, task: etl.load, queue: gpu, args: {rows: 1}}\n"
    )
    up = Process(folder, "up", "app.py", "--trust-local")
    try:
        up.line("scheduler started")
        up.line("worker started")
        yield folder
    finally:
        up.close()


def start(folder: Path, *arguments: str) -> str:
    """A new run."""
    return ok(folder, "dag", "start", *arguments, "--app", "app.py").strip()


def until(folder: Path, id: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """A run, once it is as it should be."""
    return asked_until(lambda: listing(folder, "run", id), fits)


def nodes(shown: dict[str, Any]) -> dict[str, str]:
    return {each["node"]: each["state"] for each in shown["nodes"]}


def waits(shown: dict[str, Any]) -> bool:
    return "waiting" in nodes(shown).values()


def ended(shown: dict[str, Any]) -> bool:
    return shown["state"] != "running"


def test_everything_that_is_wrong_with_a_file_is_said_with_its_line(folder: Path) -> None:
    done = run(folder, "dag", "check", "bad.yaml")
    assert (done.returncode, done.stdout) == (1, "")
    told = [line.split(": ", 3)[1:3] for line in done.stderr.splitlines()]
    assert told == [
        ["bad.yaml:3", "nodes[0].deps[0]"],
        ["bad.yaml:4", "nodes[1].budget"],
        ["bad.yaml:5", "nodes[2].name"],
        ["bad.yaml:6", "result.$from"],
    ]
    problems = json.loads(run(folder, "dag", "check", "bad.yaml", "--json").stdout)["problems"]
    assert [problem["line"] for problem in problems] == [3, 4, 5, 6]
    assert ok(folder, "dag", "check", "gated.yaml", "--app", "app.py") == "gated.yaml: dag gated is valid: 6 nodes\n"


def test_a_task_that_the_application_does_not_know_is_found_before_the_run(folder: Path) -> None:
    (folder / "typo.yaml").write_text(FILE.replace("task: etl.until", "task: etl.untill"))
    assert ok(folder, "dag", "check", "typo.yaml").endswith("is valid: 6 nodes\n")
    done = run(folder, "dag", "check", "typo.yaml", "--app", "app.py")
    assert done.returncode == 1
    where, told = done.stderr.strip().split(": node 'gate': ")
    assert where == "error: typo.yaml:3: nodes[0].task"
    assert told == "app etl knows no task 'etl.untill'; did you mean 'etl.until'?"


def test_a_dag_is_drawn_from_a_file_a_name_and_a_run(folder: Path) -> None:
    assert ok(folder, "dag", "draw", "gated.yaml").startswith("flowchart TD\n")
    assert 'n1{{"approve ?"}}' in ok(folder, "dag", "draw", "asked", "--app", "app.py")
    id = start(folder, "asked", "--args", '{"day": "monday"}')
    until(folder, id, waits)
    assert "class n1 waiting" in ok(folder, "dag", "draw", "--run", id)
    ok(folder, "dag", "draw", "asked", "--app", "app.py", "--run", id, "--out", "asked.svg")
    assert ElementTree.parse(folder / "asked.svg").getroot().tag.endswith("svg")
    other = run(folder, "dag", "draw", "gated.yaml", "--run", id)
    assert other.stderr == (f"error: run {id} was started with another definition: leave out gated.yaml to draw that\n")


def test_a_file_that_the_application_does_not_declare_is_run_and_followed(folder: Path) -> None:
    (folder / "open").touch()
    args = ("dag", "start", "gated.yaml", "--app", "app.py", "--args", '{"file": "open"}')
    done = run(folder, *args, "--follow")
    assert done.returncode == 0, done.stderr
    *changes, result = done.stdout.splitlines()
    assert json.loads(result) == {"each": [{"loaded": 0}, {"loaded": 1}, {"loaded": 2}]}
    last = {line.split()[1]: line.split()[2] for line in changes}
    assert last == dict.fromkeys(["gate", "list", "each", "inner", "inner/first", "inner/second"], "succeeded")

    followed = json.loads(run(folder, *args, "--follow", "--json").stdout)
    assert followed["state"] == "succeeded"
    each = next(node for node in followed["nodes"] if node["node"] == "each")
    assert (each["done"], each["total"]) == (3, 3)


def test_a_run_that_asks_is_listed_explained_and_answered(folder: Path) -> None:
    id = start(folder, "asked", "--args", '{"day": "friday"}', "--unique-key", "friday")
    again = run(folder, "dag", "start", "asked", "--app", "app.py", "--args", '{"day": "x"}', "--unique-key", "friday")
    assert (again.stdout, again.stderr) == (f"{id}\n", f"nothing new: run {id} has this key\n")
    shown = until(folder, id, waits)
    assert nodes(shown) == {"extract": "succeeded", "approve": "waiting", "load": "pending", "report": "pending"}
    assert shown["args"] == {"day": "friday"}

    page = ok(folder, "run", id)
    assert "extract" in ok(folder, "run", id)
    assert re.search(r"├─ approve +waiting .*Load 3 rows of friday\? \(within (1h|5\dm)", page)
    assert re.search(r"├─ load +pending .*waits for 'approve' \(waiting for an answer\)", page)
    assert f"It waits for an answer to 'approve': tidemill dag submit {id} approve '{{\"rows\": ...}}'" in page

    asked = [row for row in listing(folder, "dag", "inputs") if row["run_id"] == int(id[1:])]
    assert [(row["node"], row["prompt"], row["workflow"]) for row in asked] == [
        ("approve", "Load 3 rows of friday?", "asked")
    ]
    assert (asked[0]["schema"]["required"], asked[0]["due_at"] is not None) == (["rows"], True)
    assert f"{id} " in ok(folder, "dag", "inputs", "--run", id)
    row = next(
        row for row in listing(folder, "runs", "--shape", "dag", "--workflow", "asked") if row["id"] == int(id[1:])
    )
    assert (row["state"], row["asks"], row["shape"]) == ("running", 1, "dag")

    wrong = run(folder, "dag", "submit", id, "approve", '{"rows": "many"}')
    assert (wrong.returncode, wrong.stderr) == (
        1,
        'error: the answer does not fit the schema: rows: "many" is not of type "integer"\n',
    )
    assert (
        ok(folder, "dag", "submit", id, "approve", '{"rows": 2}', "--key", "k")
        == f"run {id} has its answer to approve\n"
    )
    assert (
        ok(folder, "dag", "submit", id, "approve", '{"rows": 2}', "--key", "k")
        == f"run {id} has its answer to approve\n"
    )
    second = run(folder, "dag", "submit", id, "approve", '{"rows": 1}')
    assert second.returncode == 1
    assert second.stderr.startswith("error: node 'approve' was answered already by ")

    shown = until(folder, id, ended)
    assert (shown["state"], set(nodes(shown).values())) == ("succeeded", {"succeeded"})
    assert "run.submit" in ok(folder, "audit")


def test_a_node_whose_job_nobody_takes_says_so(folder: Path) -> None:
    id = start(folder, "elsewhere.yaml")
    shown = until(folder, id, lambda shown: bool(shown["nodes"][0]["jobs"]))
    (job,) = shown["nodes"][0]["jobs"]
    why = f"its job {job['id']} waits: no worker serves queue gpu"
    assert why in shown["nodes"][0]["why"]
    assert re.search(rf"└─ slow +queued +\S+ +{re.escape(why)}", ok(folder, "run", id))
    ok(folder, "cancel", id)


def test_a_run_shows_the_progress_of_its_jobs_and_is_cancelled(folder: Path) -> None:
    id = start(folder, "gated.yaml", "--args", '{"file": "never"}')
    shown = until(folder, id, lambda shown: any(job["progress"] for job in shown["nodes"][0]["jobs"]))
    assert (shown["nodes"][0]["jobs"][0]["progress"], shown["nodes"][0]["jobs"][0]["note"]) == (0.25, "waits for never")
    assert re.search(r"├─ gate +running +25% .*waits for never", ok(folder, "run", id))
    assert ok(folder, "cancel", id) == f"run {id} was asked to end\n"
    shown = until(folder, id, ended)
    assert (shown["state"], set(nodes(shown).values())) == ("cancelled", {"cancelled"})
    assert "the run was cancelled: cancelled by " in shown["nodes"][0]["why"]
    late = run(folder, "cancel", id)
    assert (late.returncode, late.stderr == f"error: run {id} has ended already: cancelled\n") == (1, True)


def test_a_run_that_failed_is_repeated_with_another_input(folder: Path) -> None:
    id = start(folder, "asked", "--args", '{"day": "sunday"}')
    until(folder, id, waits)
    early = run(folder, "dag", "rerun", id)
    assert early.stderr == "error: this run has not ended yet; cancel it or let it end first\n"
    ok(folder, "dag", "submit", id, "approve", '{"rows": -1}')
    failed = run(folder, "run", id, "--follow")
    assert failed.returncode == 1
    assert failed.stderr.endswith(f"error: run {id} failed: node 'load' failed: ValueError: cannot load -1 rows\n")
    page = ok(folder, "run", id)
    assert re.search(r"├─ load +failed .*ValueError: cannot load -1 rows", page)
    assert re.search(r"└─ report +cancelled .*the run ended because 'load' failed", page)

    again = ok(folder, "dag", "rerun", id).strip()
    assert until(folder, again, ended)["state"] == "failed"
    edited = run(folder, "dag", "rerun", id, "--from", "approve", "--edit", '{"rows": 0}', "--follow")
    assert edited.returncode == 0, edited.stderr
    shown = listing(folder, "run", edited.stderr.split()[1])
    assert nodes(shown) == {"extract": "succeeded", "approve": "succeeded", "load": "succeeded", "report": "skipped"}
    assert shown["nodes"][0]["carried"]
    assert shown["origin"]["repeats"] == int(id[1:])


def test_a_run_is_shown_as_it_was_after_a_tick(folder: Path) -> None:
    id = start(folder, "asked", "--args", '{"day": "monday"}')
    until(folder, id, waits)
    ok(folder, "dag", "submit", id, "approve", '{"rows": 1}')
    until(folder, id, ended)
    then = listing(folder, "run", id, "--at", "1")
    assert (then["state"], nodes(then)["extract"], nodes(then)["approve"]) == ("running", "running", "pending")
    page = ok(folder, "run", id, "--at", "2")
    assert re.search(r"├─ approve +waiting", page)
    assert "now its state is succeeded." in page


def test_the_tree_is_kept_true_on_a_terminal(folder: Path) -> None:
    id = start(folder, "gated.yaml", "--args", '{"file": "live"}')
    until(folder, id, lambda shown: any(job["progress"] for job in shown["nodes"][0]["jobs"]))
    status, screens = on_terminal(folder, ["run", id, "--follow"], width=80, seen="25%", then="live")
    assert status == 0
    assert re.search(r"├─ gate +running +25%", screens)
    assert "0/6 nodes" in screens
    assert re.search(r"├─ each +succeeded +3/3", screens)
    assert max(map(len, screens.splitlines())) <= 80


def test_without_a_run_worker_that_is_said_and_nothing_is_lost(tmp_path: Path, database_url: str) -> None:
    folder = make_folder(tmp_path / "alone", APP, database_url)
    processes = [Process(folder, "maintenance", "app.py")]
    try:
        done = run(folder, "dag", "start", "asked", "--app", "app.py", "--args", '{"day": "monday"}')
        assert done.returncode == 0
        assert "warning: no run worker is alive" in done.stderr
        id = done.stdout.strip()
        assert "No run worker is alive to drive it. Start one with `tidemill up app.py`" in " ".join(
            ok(folder, "run", id).split()
        )
        processes.append(Process(folder, "worker", "app.py", "--only=jobs"))
        run_worker = Process(folder, "worker", "app.py", "--only=runs")
        processes.append(run_worker)
        until(folder, id, waits)
        run_worker.close()
        stored = run(folder, "dag", "submit", id, "approve", '{"rows": 1}')
        assert (stored.returncode, stored.stdout) == (0, f"the answer to approve of run {id} is stored\n")
        assert "no run worker drives the run now" in stored.stderr
        processes.append(Process(folder, "worker", "app.py", "--only=runs"))
        assert until(folder, id, ended)["state"] == "succeeded"
    finally:
        for each in reversed(processes):
            each.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dag", "check", "nowhere.yaml"], "there is no dag file nowhere.yaml"),
        (["dag", "check", "broken.yaml"], "broken.yaml:2: this is not YAML"),
        (["dag", "draw"], "name what to draw"),
        (["dag", "draw", "asked"], "'asked' is not a file; for a dag of an application, add --app app.py"),
        (["dag", "draw", "gated.yaml", "--out", "x.png"], "ends in .svg or .mmd"),
        (["dag", "draw", "gated.yaml", "--out", "no/where.svg"], "No such file or directory"),
        (["dag", "start", "askd", "--app", "app.py"], "there is no dag 'askd', and no such file"),
        (["dag", "start", "bad.yaml", "--app", "app.py"], "bad.yaml:4: nodes[1].budget"),
        (["dag", "start", "asked", "--app", "app.py", "--args", "[1]"], "not a JSON object"),
        (["runs", "--shape", "dag", "--state", "sleepy"], "there is no run state 'sleepy'"),
        (["runs", "--shape", "dag", "--limit", "0"], "would show nothing"),
        (["dag", "inputs", "--run", "r999"], "there is no run 999"),
        (["dag", "submit", "r999", "approve", "1"], "there is no run 999"),
        (["dag", "submit", "twelve", "approve", "1"], "'twelve' is not a run"),
        (["dag", "submit", "RUN", "approve", "yes"], "the answer 'yes' is not JSON"),
        (["dag", "submit", "RUN", "aprove", "1"], "there is no node 'aprove' in dag 'asked'"),
        (["dag", "submit", "RUN", "load", "1"], "node 'load' is not an input node"),
        (["dag", "submit", "FLOW", "approve", "1"], "is of flow Plain, whose code makes an event of the answer"),
        (["submit", "FLOW", "approve", "1", "--app", "app.py"], "does not ask 'approve', or was answered already"),
        (["dag", "start", "asked"], "name the application that has the tasks: --app app.py"),
        (["dag", "draw", "--run", "FLOW"], "is of workflow Plain, and not of a dag"),
        (["dag", "rerun", "FLOW"], "is of workflow Plain, and not of a dag"),
        (["dag", "rerun", "RUN", "--edit", "{}"], "--edit is for one node: name it with --from NODE"),
        (["dag", "rerun", "ENDED", "--from", "zz"], "there is no node 'zz' in dag 'asked'"),
        (
            ["dag", "rerun", "ENDED", "--from", "load", "--edit", "[]"],
            "node 'load': arguments must be an object",
        ),
        (["dag", "rerun", "ENDED", "--from", "approve", "--edit", "{}"], "the answer does not fit"),
        (["run", "RUN", "--at", "99"], "there is no tick 99"),
        (["run", "RUN", "--at", "1", "--follow"], "give one of them"),
        (["run", "FLOW", "--follow"], "--follow is for runs of dags"),
        (["send", "RUN", "Event", "{}"], "answer what it asks with `tidemill submit`"),
        (["fork", "RUN", "--at", "1", "--app", "app.py"], "repeat it with `tidemill dag rerun`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    folder: Path, known: dict[str, str], arguments: list[str], message: str
) -> None:
    done = run(folder, *(known.get(each, each) for each in arguments))
    assert done.returncode == 1
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@pytest.fixture(scope="module")
def known(folder: Path) -> dict[str, str]:
    """A run that waits for an answer, one that has ended, and one that is not of a dag."""
    waiting, over = (start(folder, "asked", "--args", '{"day": "today"}') for _ in range(2))
    for each in (waiting, over):
        until(folder, each, waits)
    ok(folder, "cancel", over)
    until(folder, over, ended)
    command = [TIDEMILL[0], "app.py"]
    ran = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=150, check=True
    )
    return {"RUN": waiting, "ENDED": over, "FLOW": f"r{ran.stdout.strip()}"}


def on_terminal(folder: Path, command: list[str], *, width: int, seen: str, then: str) -> tuple[int, str]:
    """Run a command on a terminal of its own; once something is seen, make a file. Its status, and all it showed."""
    main, side = pty.openpty()
    ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
    process = subprocess.Popen(
        [*TIDEMILL, *command],
        cwd=folder,
        env=environment(TERM="xterm-256color"),
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    shown, give_up = b"", time.monotonic() + PATIENCE
    try:
        while time.monotonic() < give_up:
            if not select.select([main], [], [], 0.1)[0]:
                continue
            try:
                shown += os.read(main, 65536)
            except OSError:  # The other side has closed: the command has ended.
                break
            if seen.encode() in shown:
                (folder / then).touch()
        return process.wait(PATIENCE), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
    finally:
        process.kill()
        process.wait()
        os.close(main)
