"""The page of `tidemill top`: it fits the terminal, and what matters is never cut."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from rich.console import Console

from tidemill.cli.admin.top_view import TopData, size, top_page
from tidemill.engine.telemetry.gpu import Gpu
from tidemill.engine.telemetry.hosts import GroupUsage, HostSample, ProcessUsage, Usage
from tidemill.ops.admin.hosts import Host
from tidemill.ops.jobs.queues import QueueLine
from tidemill.ops.jobs.workers import WorkerLine
from tidemill.ops.runs.runs import RunLine

T = TypeVar("T", bound=msgspec.Struct)

GIB = 1024**3
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LONG = "a-host-with-a-very-long-name.of-some-department.example.internal"


def host(name: str, *, age: float = 1.0, **changes: Any) -> Host:
    facts = {"cores": 16, "cpu": 15.7, "load": 17.0, "memory": 61 * GIB, "memory_total": 64 * GIB, **changes}
    sample = HostSample(disk=300 * GIB, disk_total=400 * GIB, ours=Usage(7.8, 3 * GIB), **facts)
    return Host(name, NOW, age, msgspec.to_builtins(sample))


def worker(name: str, pid: int, **changes: Any) -> WorkerLine:
    row = {"host": name, "pid": pid, "status": "running", "queues": ["mail"], "running": 3, "max_concurrency": 10}
    times = {"seen_at": NOW, "lease_until": NOW + timedelta(seconds=9), "flagged_at": None}
    return filled(WorkerLine, {**row, **times, **changes})


def queue(name: str, **counts: Any) -> QueueLine:
    row = dict.fromkeys(
        ("waiting", "scheduled", "throttled", "no_worker", "running", "succeeded", "unsuccessful", "workers"), 0
    )
    return filled(QueueLine, {"name": name, **row, **counts})


def a_run(number: int) -> RunLine:
    facts = {"id": number, "state": "running", "ticks": 7, "created_at": NOW, "ended_at": None}
    return filled(RunLine, {**facts, "workflow": "press.Article", "note": "a long note " * 20})


def filled(kind: type[T], values: dict[str, Any]) -> T:
    """A Struct with None in every other field."""
    return kind(**{name: values.get(name) for name in kind.__struct_fields__})


def data(**parts: Any) -> TopData:
    return TopData(**{"where": "db", "at": NOW, "hosts": [], "workers": [], "queues": [], "runs": [], **parts})


BUSY = data(
    where="a-database.example:5432/" + "x" * 100,
    hosts=[
        host(
            LONG,
            gpus=(Gpu(0, "NVIDIA H200", 1.0, 2 * GIB, 140 * GIB, 63.0, 688.0), Gpu(1, "quiet")),
            group=GroupUsage(7.0, 63 * GIB, cpu_limit=8.0, memory_limit=64 * GIB),
            processes=(ProcessUsage(812, 1.25, 900 * 1024**2),),
        ),
        host("old", age=95.0),
    ],
    workers=[worker(LONG, 812), worker(LONG, 1234567, queues=["mail", "fetch"] * 20)],
    queues=[queue("q" * 150, waiting=1_234_567, succeeded=98_123, unsuccessful=45_678, oldest=99_999.0, running=200)],
    runs=[a_run(number) for number in range(8)],
)


def drawn(data: TopData, width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, highlight=False, emoji=False, markup=False)
    with console.capture() as captured:
        console.print(top_page(data, width=width, height=height))
    return captured.get().splitlines()


@pytest.mark.parametrize("width", [80, 104, 120, 200])
def test_it_fits_the_width(width: int) -> None:
    assert max(len(line) for line in drawn(BUSY, width)) <= width


@pytest.mark.parametrize("height", [24, 40])
def test_it_fits_the_height_and_shows_something_of_everything(height: int) -> None:
    many = data(
        hosts=[host(f"host-{number}") for number in range(30)],
        workers=[worker("host-1", number) for number in range(100)],
        queues=[queue(f"queue-{number}") for number in range(50)],
        runs=[a_run(number) for number in range(8)],
    )
    lines = drawn(many, 80, height)
    assert len(lines) <= height
    for each in ("host-0", "host-1:0", "queue-0", "r0", "more: tidemill workers", "more: tidemill queues"):
        assert any(each in line for line in lines), each


def test_of_a_long_name_the_process_id_is_not_cut() -> None:
    text = "\n".join(drawn(BUSY, 80))
    assert "…:812 " in text
    assert "…:1234567 " in text


def test_what_a_worker_uses_stands_beside_it() -> None:
    (line,) = [line for line in drawn(BUSY, 120) if ":812" in line]
    assert "1.25" in line
    assert "900M" in line


def test_silence_and_limits_are_told() -> None:
    text = "\n".join(drawn(BUSY, 120))
    assert "8 cores 64G" in text
    assert "silent 1m" in text
    lapsed = data(workers=[worker("mill", 1, lease_until=NOW - timedelta(seconds=1))])
    assert any("silent" in line for line in drawn(lapsed, 80))


def test_a_queue_that_nobody_serves_says_so() -> None:
    assert any("none" in line for line in drawn(data(queues=[queue("gpu", waiting=4)]), 80))


def test_where_there_is_nothing_it_says_what_to_do() -> None:
    text = " ".join(" ".join(drawn(data(), 80)).split())
    for hint in ("`tidemill up app.py`", "tidemill worker app.py", "made by enqueueing to it", "await app.start("):
        assert hint in text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0B"), (900 * 1024**2, "900M"), (1.5 * GIB, "1.5G"), (64 * GIB, "64G"), (2e15, "1819T")]
)
def test_sizes_are_short(number: float, text: str) -> None:
    assert size(number) == text
