"""The tree of a run on a terminal: what each line says, and what is left out where there is no room."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import msgspec
from rich.console import Console

from tests.support.dags import Walk
from tidemill.cli.dags.page import DagPage, folded, live, page
from tidemill.core.codec import encode
from tidemill.dags import Dag, input_node, node, sub_dag
from tidemill.dags.runner.runner import DagInput
from tidemill.dags.view.explain import tree
from tidemill.dags.view.view import DagView, NodeLine, lines, nodes_of, why_job, why_run
from tidemill.ops.runs.dags import DagTree
from tidemill.ops.runs.runs import Run
from tidemill.store.runs.claims import DAG_KIND

DAG = Dag(
    "d",
    [
        node("a", "t"),
        node("each", "t", map=[1, 2, 3], max_concurrency=2, tolerate=1),
        input_node("ask", prompt="Really?", timeout=90),
        node("last", "t", deps=["a", "each", "ask"]),
    ],
)

JOB: dict[str, Any] = {
    "id": 17, "work": 1, "state": "ready", "queue": "gpu", "task": "t", "attempt": 0, "progress": None, "note": None,
    "origin": None, "due_in": -1.0, "ahead": 0, "serving": 1, "knowing": 1, "held": [], "rate": None, "deadline": None,
    "worker_host": None, "worker_pid": None, "worker_id": None, "cancel_reason": None, "running_for": None,
}  # fmt: skip

STARTED = datetime(2030, 1, 1, tzinfo=UTC)


def seen(walk: Walk, *jobs: dict[str, Any], run_workers: int = 1, **row: Any) -> DagView:
    row = {
        "id": 5, "workflow": "d", "kind": DAG_KIND, "state": walk.state.status, "seq": 3, "note": None, "owner": None,
        "awake": False, "origin": None, "key": None, "result": None, "created_at": STARTED, "ended_at": None,
        "input": encode(DagInput(msgspec.Raw(DAG.to_json()), {"x": 1})), **row,
    }  # fmt: skip
    return DagView(row=row, program=walk.program, state=walk.state, now=walk.now, jobs=jobs, run_workers=run_workers)


def lines_of(view: DagView) -> list[NodeLine]:
    return lines(nodes_of(view), view.now)


def page_of(view: DagView) -> DagPage:
    """The page of a run as the operations tell it."""
    run = Run(
        **{name: view.row[name] for name in ("id", "workflow", "state", "note", "origin", "key", "result")},
        shape="dag", version="1", ticks=3, input={"x": 1}, error=None, created_at=STARTED, ended_at=None,
        forked_from=None, parent=None, owner_host=None, owner_pid=None, why=[], buffered=None,
        priority=None, deadline=None, start_at=None, rate_key=None, tags=[],
    )  # fmt: skip
    at = datetime.fromtimestamp(view.now, UTC)
    return DagPage(run, DagTree(run.id, view.run_state, {}, nodes_of(view), why_run(view), at, view.run_workers))


def drawn(what: Any, width: int) -> list[str]:
    console = Console(width=width, file=StringIO(), highlight=False)
    console.print(what)
    assert isinstance(console.file, StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_job_that_nobody_serves_is_the_reason_of_its_node() -> None:
    assert why_job({**JOB, "serving": 0}) == (
        "its job 17 waits: no worker serves queue gpu: start one with `tidemill worker APP --queue gpu`"
    )
    assert why_job({**JOB, "ahead": 2}) == "its job 17 waits on queue gpu: waits behind 2 jobs of queue gpu"
    running = {**JOB, "state": "running", "worker_host": "h", "worker_pid": 4, "attempt": 2, "note": "page 3"}
    assert why_job(running) == "page 3, its job 17 runs on h (pid 4), attempt 2"


def test_every_line_has_its_state_progress_and_reason() -> None:
    walk = Walk(DAG).start().done("each")
    found = {line.label: line for line in lines_of(seen(walk, JOB))}
    assert (found["a"].state, found["a"].why) == (
        "queued",
        "its job 17 waits on queue gpu: it is next in queue gpu. 1 worker can claim it",
    )
    assert (found["each"].state, found["each"].count, found["each"].why) == ("running", "1/3", "2 running")
    assert found["ask"].why.startswith("Really? (within 1m")
    assert (found["last"].state, found["last"].took) == ("pending", None)
    told = {each.node: each for each in nodes_of(seen(walk, JOB))}
    assert [job.id for job in told["a"].jobs] == [17]
    assert "its job 17 waits" in told["a"].why


def test_the_items_of_a_map_that_are_at_work_are_shown_under_it() -> None:
    walk = Walk(DAG).start()
    (work,) = [work for work, index in walk.state.nodes["each"].items.working.items() if index == 1]  # pyright: ignore
    job = {**JOB, "work": work, "state": "running", "progress": 0.5, "note": "half", "running_for": 2.0}
    shown = lines_of(seen(walk, job))
    assert [(line.branch + line.label, line.far, line.why) for line in shown if line.label.startswith("item")] == [
        ("│  · item 1", 0.5, "half")
    ]


def test_a_run_that_nobody_drives_says_so() -> None:
    walk = Walk(DAG).start()
    assert why_run(seen(walk, run_workers=0))[0].startswith("No run worker is alive to drive it.")
    assert why_run(seen(walk)) == ["It waits for an answer to 'ask': tidemill dag submit r5 ask '...'"]
    assert why_run(seen(walk, state="failed", note="node 'a' failed")) == ["node 'a' failed"]


def test_the_tree_fits_any_width_and_its_lines_stay_whole() -> None:
    walk = Walk(DAG).start().done("each")
    view = seen(walk, {**JOB, "serving": 0})
    for width in (60, 80, 120):
        text = drawn(page(page_of(view), width), width)
        assert max(map(len, text)) <= width
        tree = text[text.index("nodes  0 of 4 have ended") + 1 : text.index("why") - 1]
        assert [line[2:12].split()[1] for line in tree if line[2] in "├└"] == ["a", "each", "ask", "last"]
        above = tree[: next(at for at, line in enumerate(tree) if line.startswith("  └"))]
        assert {line[2] for line in above} == {"├", "│"}
        assert "start one with `tidemill worker APP --queue gpu`" in re.sub(r"[\s│]+", " ", " ".join(tree))
    shown = drawn(live(page_of(view), 80, 24), 80)
    assert [line[:4] for line in shown] == ["run ", "├─ a", "├─ e", "├─ a", "└─ l", "It w"]


def test_a_tree_that_a_server_tells_has_the_same_lines() -> None:
    inner = Dag("inner", [node("first", "t"), node("second", "t", deps=["first"])])
    dag = Dag("outer", [node("a", "t"), sub_dag("b", inner), node("c", "t", deps=["a"])])
    walk = Walk(dag).start().done("a")
    shown = page_of(seen(walk, {**JOB, "work": walk.work("b/first")}))
    told = DagPage(shown.run, msgspec.json.decode(msgspec.json.encode(shown.tree), type=DagTree))
    assert [msgspec.structs.replace(line, took=None) for line in told.lines] == [
        msgspec.structs.replace(line, took=None) for line in shown.lines
    ]
    assert [(line.branch, line.label) for line in told.lines] == [
        (row.branch, row.label) for row in tree(walk.program, walk.state)
    ]
    assert [line.state for line in told.lines] == ["succeeded", "running", "queued", "pending", "running"]
    assert told.tree == shown.tree


def test_where_there_is_no_room_what_goes_on_stays() -> None:
    many = [NodeLine("├─ ", f"n{at}", "succeeded" if at < 50 else "pending") for at in range(100)]
    many[70] = NodeLine("├─ ", "n70", "running")
    many[10] = NodeLine("├─ ", "n10", "failed")
    many[90] = NodeLine("├─ ", "n90", "running", far=0.5)
    shown = folded(many, 10)
    assert len(shown) == 10
    assert {"n10", "n70", "n90"} <= {line.label for line in shown}
    assert [line.label for line in folded(many, 3)][:2] == ["n10", "n90"]  # The one that tells how far it is.
    assert (shown[-1].label, shown[-1].why) == ("91 more", "49 succeeded, 42 pending")
    assert folded(many, 100) == many
