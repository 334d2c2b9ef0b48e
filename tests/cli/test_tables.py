"""Tables of the command line fit a terminal of eighty columns: what names a row, and what its figures are, is whole."""

from __future__ import annotations

import io
from datetime import UTC, datetime, timedelta

from rich.console import Console, RenderableType

from tidemill.cli.jobs.queues import queues_table
from tidemill.cli.render import table
from tidemill.cli.run.live_footer import child_line, draw_footer, empty_queue
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


def stacked(shown: RenderableType) -> list[list[str]]:
    """The words of the heads of the tables, one below the other, that a wide table becomes."""
    said = lines(shown)
    return [said[number - 1].split() for number, line in enumerate(said) if set(line.strip()) == {"─"}]


def test_a_table_leaves_out_empty_columns_where_it_is_too_wide() -> None:
    made = table("source", *(f"number {n}" for n in range(12)), numbers=[f"number {n}" for n in range(12)])
    made.add_row("positions", "1", "0", *["12,345"] * 2, *["", "0"] * 4)
    (head,) = stacked(made)
    assert " ".join(head) == "source number 0 number 2 number 3"


def test_a_table_that_is_too_wide_continues_below_with_its_first_column() -> None:
    made = table("source", *(f"number {n}" for n in range(12)), numbers=[f"number {n}" for n in range(12)])
    made.add_row("positions", *["12,345"] * 12)
    heads = stacked(made)
    assert [head[0] for head in heads] == ["source", "source"]
    assert [word for head in heads for word in head if word.isdigit()] == [str(n) for n in range(12)]
    assert " ".join(lines(made)).count("12,345") == 12
    assert "…" not in " ".join(lines(made))


def test_a_table_cuts_long_texts_before_it_continues_below() -> None:
    made = table("name", "path", "size", numbers=("size",), wide="path")
    made.add_row("n" * 30, "p" * 90, "12,345")
    (head,) = stacked(made)
    assert head == ["name", "path", "size"]
    assert "12,345" in lines(made)[2]


def test_the_text_that_a_table_is_read_for_is_cut_last() -> None:
    made = table("id", "task", "queue", "note", wide="note")
    made.add_row("7", "t" * 30, "q" * 30, "it was killed by SIGKILL")
    assert "it was killed by SIGKILL" in lines(made)[2]


def test_log_lines_break_between_words_and_keep_the_name_of_their_process_apart() -> None:
    line = "22:09:34 [warning  ] job will be retried      attempt=1 job=2 task=send why='ada is not an address'"
    said = lines(child_line("jobs", line, wide=6, width=80))
    assert said == [
        "jobs   │ 22:09:34 [warning  ] job will be retried      attempt=1 job=2 task=send",
        "       │   why='ada is not an address'",
    ]


def test_a_link_in_a_log_line_is_never_broken() -> None:
    link = "open http://127.0.0.1:7433/#token=" + "t" * 60
    console = Console(file=io.StringIO(), width=80)
    with console.capture() as captured:
        console.print(child_line("server", link, wide=6, width=80), soft_wrap=True)
    assert captured.get() == f"server │ {link}\n"


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
