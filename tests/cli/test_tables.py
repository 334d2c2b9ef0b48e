"""Tables of the command line fit a terminal of eighty columns: what names a row, and what its figures are, is whole."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console, RenderableType

from tidemill.cli.jobs.queues import queues_table
from tidemill.cli.run.live_footer import draw_footer, empty_queue
from tidemill.cli.runs.list import runs_table
from tidemill.ops.jobs.queues import QueueLine
from tidemill.ops.runs.runs import RunLine

HEADS = ["queue", "wait", "sched", "throttled", "no_worker", "run", "done/m", "fail/m", "oldest", "workers"]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def lines(shown: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().splitlines()


def run(number: int, note: str | None) -> RunLine:
    began = NOW - timedelta(seconds=number)
    about = {"shape": "flow", "key": None, "forked_from": None, "parent": None, "asks": 0}
    ended = {"state": "succeeded", "ended_at": NOW, "owned": False, "awake": False}
    return RunLine(id=number, workflow="Refund", ticks=1250, created_at=began, note=note, **about, **ended)


def test_ids_and_states_of_runs_are_whole_however_long_a_note_is() -> None:
    head, _, *rows = lines(runs_table([run(12345, "LookupError: " + "not in the books " * 9), run(7, None)], NOW))
    assert head.split() == ["id", "state", "workflow", "ticks", "started", "took", "note"]
    assert [row.split()[:4] for row in rows] == [[name, "succeeded", "Refund", "1,250"] for name in ("r12345", "r7")]
    assert rows[0].rstrip().endswith("…")


def test_heads_and_figures_of_queues_are_whole() -> None:
    counts = {"waiting": 12, "scheduled": 3, "throttled": 0, "no_worker": 0, "running": 10}
    counts |= {"succeeded": 52708, "unsuccessful": 781}
    limit = {"rate": 5.0, "burst": None, "limited_by": None}
    row = QueueLine(name="pipelines", **counts, oldest=42.0, workers=4, control=[], **limit)
    head, _, told = lines(queues_table([row], datetime.now(UTC)))
    assert head.split() == [
        "queue",
        "wait",
        "sched",
        "throttled",
        "run",
        "done/h",
        "fail/h",
        "oldest",
        "workers",
        "limit",
    ]
    assert told.split() == ["pipelines", "12", "3", "0", "10", "52,708", "781", "42s", "4", "5/s"]


def test_jobs_that_no_worker_knows_are_not_counted_as_throttled() -> None:
    counts = {"waiting": 0, "scheduled": 0, "throttled": 0, "no_worker": 2, "running": 0}
    counts |= {"succeeded": 0, "unsuccessful": 0}
    row = QueueLine(name="scans", **counts, oldest=None, workers=1, control=[], rate=None, burst=None, limited_by=None)
    head, _, told = lines(queues_table([row], datetime.now(UTC)))
    assert "throttled" not in head
    assert told[: head.index("no_worker") + len("no_worker")].split() == ["scans", "0", "0", "2"]


def test_the_foot_of_up_has_whole_headings_and_the_whole_link() -> None:
    link = f"http://127.0.0.1:7433/#token=tm_{'x' * 43}"
    rows = [empty_queue("stream:tickets"), {**empty_queue("scans"), "throttled": 1, "no_worker": 1}]
    shown = lines(draw_footer("tidemill", "press o to open", rows, [], "", console_at=link, width=80))
    assert "…" not in "".join(shown)
    assert shown[1].split() == HEADS
    assert [line.strip() for line in shown[-2:]] == [link, "press o to open"]
