"""`tidemill top` and `--metrics`, as an operator has them: real processes on an embedded database."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import struct
import subprocess
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import PATIENCE, TIDEMILL, Process, asked_until, environment, listing, make_folder, ok, run
from tests.support.ports import free_port


class Shop:
    """A folder in which `tidemill up` runs, and the port of its metrics."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        # In the environment, for the children see it too and must leave the port to their parent.
        self.up = Process(folder, "up", "app.py", TIDEMILL_METRICS=str(self.port), TIDEMILL_SAMPLE_EVERY="0.5s")

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=PATIENCE) as answer:
            return answer.read().decode()

    def top(self, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """What `top --json` says, once it is as it should be."""
        return asked_until(lambda: listing(self.folder, "top"), fits)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Shop]:
    shop = Shop(make_folder(tmp_path_factory.mktemp("shop"), database_url=module_database_url))
    try:
        shop.up.line("worker started")
        shop.up.line("scheduler started")
        yield shop
    finally:
        shop.up.close()


def test_one_json_document_tells_hosts_workers_queues_and_runs(shop: Shop) -> None:
    ok(shop.folder, "enqueue", "app.py", "send_receipt", '{"order_id": 1}')
    told = shop.top(lambda now: bool(now["hosts"]) and any(row["succeeded"] for row in now["queues"]))
    assert [row["name"] for row in told["hosts"]] == [socket.gethostname()]
    sample = told["hosts"][0]["sample"]
    assert 0 < sample["memory"] < sample["memory_total"]
    assert {row["host"] for row in told["workers"]} == {socket.gethostname()}
    assert any("mail" in row["queues"] for row in told["workers"])
    assert told["runs"] == []


def test_the_workers_process_is_measured(shop: Shop) -> None:
    def measured(now: dict[str, Any]) -> bool:
        processes = {each["pid"] for row in now["hosts"] for each in row["sample"]["processes"]}
        return any(row["pid"] in processes for row in now["workers"])

    assert measured(shop.top(measured))


@pytest.mark.parametrize("width", [80, 120])
def test_once_fits_the_width_and_says_what_there_is(shop: Shop, width: int) -> None:
    shop.top(lambda now: bool(now["hosts"]))
    printed = run(shop.folder, "top", "--once", COLUMNS=str(width))
    assert printed.returncode == 0, printed.stderr
    lines = printed.stdout.splitlines()
    assert max(len(line) for line in lines) <= width
    assert any(line.startswith("hosts") for line in lines)
    assert any("mail, fetch, default" in line and "running" in line for line in lines)
    assert any(line.startswith("queues") for line in lines)
    assert "no runs: start one with" in printed.stdout


def test_live_it_draws_until_q_is_pressed(shop: Shop) -> None:
    status, shown = _in_terminal(shop.folder, lambda screen: b"queues" in screen, send=b"q")
    assert status == 0
    assert b"q quits" in shown


def test_live_it_leaves_at_ctrl_c(shop: Shop) -> None:
    status, _ = _in_terminal(shop.folder, lambda screen: b"queues" in screen, send=b"\x03")
    assert status == 0


def test_metrics_are_served_by_up_for_all_its_children(shop: Shop) -> None:
    ok(shop.folder, "enqueue", "app.py", "send_receipt", '{"order_id": 2}')
    wanted = 'tidemill_job_attempts_total{outcome="succeeded",queue="mail",task="send_receipt"}'
    host = f'tidemill_host_cpu_cores{{host="{socket.gethostname()}"}}'
    text = asked_until(shop.metrics, lambda text: wanted in text and host in text)
    assert 'tidemill_queue_workers{queue="mail"} 1.0' in text


def test_a_taken_port_ends_the_command_with_a_sentence(shop: Shop) -> None:
    done = run(shop.folder, "maintenance", "app.py", f"--metrics={shop.port}")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: metrics cannot be served at 127.0.0.1:{shop.port}: another process listens")
    assert len(done.stderr.splitlines()) == 1


def test_a_wrong_address_ends_the_command_with_a_sentence(shop: Shop) -> None:
    done = run(shop.folder, "up", "app.py", "--metrics=everywhere")
    assert done.returncode == 1
    assert "'everywhere' is not an address: write host:port" in done.stderr


def test_an_empty_database_says_what_to_do(tmp_path: Path, database_url: str) -> None:
    folder = make_folder(tmp_path, database_url=database_url)
    printed = ok(folder, "top", "--once")
    for hint in ("`tidemill up app.py`", "no worker runs: tidemill worker app.py", "a queue is made by enqueueing"):
        assert hint in printed
    assert listing(folder, "top")["hosts"] == []


def test_without_a_database_it_says_where_to_get_one(tmp_path: Path) -> None:
    done = run(make_folder(tmp_path), "top", "--once")
    assert done.returncode == 1
    assert "there is no database here yet" in done.stderr


def test_without_a_terminal_it_asks_for_once(shop: Shop) -> None:
    done = run(shop.folder, "top")
    assert done.returncode == 1
    assert done.stderr == "error: `tidemill top` needs a terminal to draw on: use --once or --json here\n"


def _in_terminal(folder: Path, ready: Callable[[bytes], bool], *, send: bytes) -> tuple[int, bytes]:
    """Run `tidemill top` in a terminal of 80 by 24, press a key when it is ready; its status, and what it drew."""
    own, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [*TIDEMILL, "top"], cwd=folder, env=environment(TERM="xterm"), stdin=theirs, stdout=theirs, stderr=theirs,
        preexec_fn=lambda: ioctl(0, termios.TIOCSCTTY, 0), start_new_session=True,
    )  # fmt: skip
    screen, sent, give_up = b"", False, time.monotonic() + PATIENCE
    try:
        while process.poll() is None and time.monotonic() < give_up:
            if select.select([own], [], [], 0.1)[0]:
                screen += os.read(own, 65536)
            if not sent and ready(screen):
                os.write(own, send)
                sent = True
        assert process.poll() is not None, f"it did not leave; it drew {screen[-2000:]!r}"
        assert termios.tcgetattr(theirs) == before, "the terminal is as it was"
        return process.returncode, screen
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(PATIENCE)
        os.close(own)
        os.close(theirs)
