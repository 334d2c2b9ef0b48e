"""Children that are copies of their supervisor: each finds itself as a new process would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.cli import PATIENCE, Process, make_folder
from tests.support.processes import ROOT
from tidemill.engine.roles.forking import CAN_COPY, OTHERS, OURS

pytestmark = pytest.mark.skipif(not CAN_COPY, reason="copies are made on Linux only")

#: A supervisor that holds an open file, a thread and signal handlers, and whose child prints what it sees of them.
SUPERVISOR = """
import asyncio, json, os, signal, sys, threading
from tidemill.engine.roles.supervisor import PYTHON, ChildSpec, Supervisor, end_with_supervisor

def child(spec):
    words = spec.command[len(PYTHON):]
    supervised = end_with_supervisor()
    seen = {{
        "words": list(words), "argv": sys.argv, "pid": os.getpid(), "parent": os.getppid(),
        "session": os.getsid(0), "stdin": os.read(0, 1).decode(), "piped": supervised.piped,
        "given": os.environ.get("GIVEN"), "loop": asyncio._get_running_loop() is not None,
        "handlers": [n for n in (1, 15) if callable(signal.getsignal(n))],
        "masked": len(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "files": [os.path.realpath(f"/proc/self/fd/{{each}}") for each in os.listdir("/proc/self/fd")],
        "command": open("/proc/self/cmdline").read().split(chr(0))[:3],
        "atexit": "not mine", "idle": supervisor.threads.is_idle,
    }}
    print(json.dumps(seen), flush=True)
    {then}

lives = 0
def hear(name, line):
    global lives
    print(line, flush=True)
    lives += line.startswith(("{{", "error: unknown command"))
    if lives == {lives}:
        supervisor.stop()

def busy():
    held.wait()

async def main():
    global supervisor, held
    held = threading.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: None)
    loop.add_signal_handler(signal.SIGHUP, lambda: None)
    supervisor = Supervisor([ChildSpec("one", (*PYTHON, "one", "--two"), environment={{"GIVEN": "3"}})], grace=5,
                            on_line=hear, run_child=child)
    running = asyncio.create_task(supervisor.run())
    {during}
    status = await running
    held.set()
    return status

import atexit
atexit.register(print, "the supervisor ends")
kept = open(__file__)
print("supervisor", os.getpid(), flush=True)
sys.exit(asyncio.run(main()))
"""


def supervise(folder: Path, then: str, *, lives: int = 1, during: str = "pass") -> tuple[list[dict[str, Any]], str]:
    """What each life of the child saw, and all that was printed."""
    script = folder / "supervisor.py"
    script.write_text(SUPERVISOR.format(then=then, lives=lives, during=during))
    done = subprocess.run(
        [sys.executable, str(script), "room for a command line"], capture_output=True, text=True, timeout=PATIENCE * 2
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")], done.stdout + done.stderr


def test_a_copy_finds_itself_as_a_new_process_would(tmp_path: Path) -> None:
    (seen,), said = supervise(tmp_path, "signal.pause()")
    assert seen["words"] == ["one", "--two"]
    assert seen["argv"] == seen["command"] == ["tidemill", "one", "--two"]
    assert f"supervisor {seen['parent']}" in said
    assert seen["session"] == seen["pid"]
    assert (seen["stdin"], seen["piped"], seen["given"]) == ("", True, "3")
    assert not seen["loop"]
    assert not seen["handlers"]
    assert seen["masked"] == 0
    assert str(tmp_path / "supervisor.py") not in seen["files"], "it closes what its supervisor has opened"
    assert said.count("the supervisor ends") == 1, "it does not run what its supervisor does at its end"


@pytest.mark.parametrize(
    ("then", "why"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("return 75", "exit 75"),
        ("raise SystemExit(75)", "exit 75"),
        ("raise RuntimeError('of its own')", "exit 1"),
    ],
)
def test_a_copy_that_ends_is_started_again_as_another(tmp_path: Path, then: str, why: str) -> None:
    (first, second), said = supervise(tmp_path, then, lives=2)
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"]
    assert why in said


def test_no_copy_is_made_while_a_thread_of_the_supervisor_works(tmp_path: Path) -> None:
    # The command is started as a new Python, which does not know it.
    seen, said = supervise(tmp_path, "return 0", during="await asyncio.sleep(0); loop.run_in_executor(None, busy)")
    assert not seen
    assert "unknown command 'one'" in said


@pytest.mark.parametrize("steps", range(1, 4))
def test_a_thread_that_begins_to_work_while_a_copy_is_being_made_is_not_at_work_in_it(
    tmp_path: Path, steps: int
) -> None:
    during = f"[await asyncio.sleep(0) for _ in range({steps})]; loop.run_in_executor(None, busy)"
    seen, said = supervise(tmp_path, "return 0", during=during)
    assert seen or "unknown command 'one'" in said
    assert all(each["idle"] for each in seen)


def test_a_supervisor_that_ends_while_a_copy_loads_the_application_ends_that(tmp_path: Path, database_url: str) -> None:
    folder = make_folder(tmp_path / "shop", database_url=database_url)
    (folder / "app.py").write_text("import os, time\nprint('loading', os.getpid(), flush=True)\ntime.sleep(600)\n")
    process = Process(folder, "worker", "app.py")
    try:
        copy = psutil.Process(int(process.line("loading").split()[-1]))
        assert copy.pid != process.pid
        process.signal(signal.SIGTERM)
        assert psutil.wait_procs([copy], timeout=PATIENCE)[1] == []
    finally:
        process.close()


def test_an_interrupt_while_a_copy_loads_the_application_is_not_lost(tmp_path: Path, database_url: str) -> None:
    """As a supervisor of services sends it: to this process alone."""
    folder = make_folder(tmp_path / "shop", database_url=database_url)
    (folder / "app.py").write_text(
        "import os, time\nfrom tidemill import App\napp = App('shop')\napp.task(lambda: 1, name='one')\n"
        "print('loading', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    )
    process = Process(folder, "worker", "app.py")
    try:
        process.line("loading")
        process.signal(signal.SIGINT)
        (folder / "go").touch()
        assert process.wait() == 130, process.output
    finally:
        process.close()


def test_a_supervisor_loads_no_code_of_the_application(tmp_path: Path, database_url: str) -> None:
    folder = make_folder(tmp_path / "shop", database_url=database_url)
    app = folder / "app.py"
    note = f"import os\nwith open({str(folder / 'loaded')!r}, 'a') as file:\n    print(os.getpid(), file=file)\n"
    app.write_text(app.read_text().replace("from __future__ import annotations\n", "") + note)
    process = Process(folder, "worker", "app.py")
    try:
        process.line("worker started")
        loaded = {int(line) for line in (folder / "loaded").read_text().split()}
        assert process.pid not in loaded
        assert {child.pid for child in process.tree()} & loaded
    finally:
        process.close()


#: Notes what each process has loaded when it has loaded the application.
LOADED = """
import os, sys
from tidemill.dags import Dag, input_node, node
agree = input_node("agree", prompt="Send it?", schema={{"type": "object"}}, timeout="1h", default={{"ok": False}})
send = node("send", "send_receipt", args={{"order_id": 1}}, skip_if="!agree.ok", deps=["agree"])
app.dag(Dag("asked", nodes=[agree, send]))
with open({file!r}, "a") as file:
    names = ("cyclopts", "rich", "cel_expr_python", "jsonschema_rs")
    print(os.getppid(), *(name for name in names if name in sys.modules), file=file)
"""


def test_the_processes_of_a_worker_load_neither_the_parser_of_commands_nor_what_compiles_conditions(
    tmp_path: Path, database_url: str
) -> None:
    folder = make_folder(tmp_path / "shop", database_url=database_url)
    with (folder / "app.py").open("a") as app:
        app.write(LOADED.format(file=str(folder / "loaded")))
    command = [sys.executable, "-m", "tidemill.cli.start", "worker", "app.py", "--until-idle"]
    heartbeat = {**os.environ, "TIDEMILL_HEARTBEAT_SECONDS": "0.2s", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=heartbeat, capture_output=True, text=True, timeout=PATIENCE * 2)
    assert done.returncode == 0, done.stderr
    asked, *children = [line.split() for line in (folder / "loaded").read_text().splitlines()]
    assert asked[1:] == ["cyclopts", "cel_expr_python", "jsonschema_rs"], "the copy that loads the application first"
    assert children == [asked[:1]] * 2


def test_all_that_copies_share_starts_no_thread() -> None:
    """A thread does not exist in a copy, so that what waits for it there would wait for ever."""
    modules = [path.with_suffix("").relative_to(ROOT).parts for path in (ROOT / "tidemill").rglob("*.py")]
    names = [".".join(each[:-1] if each[-1] == "__init__" else each) for each in modules if "__main__" not in each]
    ours = [name for name in names if name.startswith(OURS) and not name.startswith(OTHERS) and "template" not in name]
    program = (
        "import importlib, sys, threading\n"
        f"for name in {ours!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert threading.active_count() == 1, (name, threading.enumerate())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ValueError('no such shop')", "app.py cannot be imported: ValueError: no such shop"),
        ("1 +", "SyntaxError"),
        ("", "declares no App"),
    ],
)
def test_an_application_that_cannot_be_loaded_is_one_clear_line(tmp_path: Path, code: str, said: str) -> None:
    (tmp_path / "app.py").write_text(code)
    process = Process(tmp_path, "up", "app.py")
    try:
        assert process.wait() == 1
        assert process.output.count("error: ") == 1
        assert said in process.output
    finally:
        process.close()
