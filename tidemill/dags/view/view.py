"""A run of a dag as nodes and as lines: each with its state, how far it is, how long it took, and why. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.core.duration import format_duration
from tidemill.dags.reducer.events import FINAL
from tidemill.dags.reducer.reducer import DagProgram
from tidemill.dags.reducer.state import DagState, NodeState
from tidemill.dags.view.explain import TreeRow, explain, tree
from tidemill.engine.explain import (
    explain_control,
    explain_job,
    explain_run_end,
    explain_run_rate,
    explain_start,
    explain_workers,
)

Job = Mapping[str, Any]

MOST_ITEMS_SHOWN = 4
UNSEEN_JOB = "its job waits in its queue or runs"


class DagView(msgspec.Struct, frozen=True):
    """A run at one time: its row, its state, its unfinished jobs (or some of many), and how many run workers live."""

    row: Mapping[str, Any]
    program: DagProgram
    state: DagState
    now: float
    jobs: Sequence[Job] = ()
    all_jobs: bool = True
    run_workers: int = 0
    tick: int | None = None
    """The tick after which the run is shown; None for its current state."""
    rate: Mapping[str, Any] | None = None
    """What it waits for, if that is its rate."""

    @property
    def id(self) -> str:
        return f"r{self.row['id']}"

    @property
    def run_state(self) -> str:
        return self.row["state"] if self.tick is None else self.state.status

    @property
    def ended(self) -> bool:
        return self.run_state not in ("running", "needs_attention")


class NodeJobLine(msgspec.Struct, frozen=True):
    """An unfinished job of a node; `item` is the item of a map that it works on."""

    id: int
    state: str
    queue: str
    attempt: int
    progress: float | None
    note: str | None
    item: int | None
    running_for: float | None


class NodeView(msgspec.Struct, frozen=True):
    """A node of a run: `done` of `total` counts the items or nodes inside of one.

    `why` is a sentence by itself; `about` is what there is to say beside the state.
    """

    node: str
    state: str
    done: int | None
    total: int | None
    began: datetime | None
    ended: datetime | None
    note: str
    why: str
    about: str
    carried: bool
    jobs: list[NodeJobLine]


class NodeLine(msgspec.Struct, frozen=True):
    """One line of the tree: a node, or a running item of a map."""

    branch: str
    label: str
    state: str
    far: float | None = None
    """The progress, from 0 to 1."""
    count: str = ""
    took: float | None = None
    why: str = ""


def nodes_of(view: DagView) -> list[NodeView]:
    """Every node of a run, each before the nodes inside of it."""
    jobs = jobs_by_node(view)
    return [_node(view, row, jobs.get(row.node, [])) for row in tree(view.program, view.state)]


def lines(nodes: Sequence[NodeView], now: float) -> list[NodeLine]:
    """The tree as lines, top to bottom; `now` is the moment that it shows."""
    last = {node.node.rpartition("/")[0]: node.node for node in nodes}
    below: dict[str, str] = {}
    found: list[NodeLine] = []
    for node in nodes:
        parent, _, label = node.node.rpartition("/")
        above, is_last = below.get(parent, ""), last[parent] == node.node
        below[node.node] = above + ("   " if is_last else "│  ")
        found.append(_line(node, above + ("└─ " if is_last else "├─ "), label, now))
        if node.total is not None and node.state == "running":
            found += _items(node, f"{below[node.node]}· ")
    return found


def jobs_by_node(view: DagView) -> dict[str, list[Job]]:
    """Return the unfinished jobs of each node."""
    found: dict[str, list[Job]] = {}
    for job in view.jobs:
        name = view.state.works.get(job["work"])
        if name is not None:
            found.setdefault(name, []).append(job)
    return found


def why_run(view: DagView) -> list[str]:
    """Explain the state of the run in a few sentences."""
    row = view.row
    if view.tick is not None:
        return [f"It is shown as it was after tick {view.tick} of {row['seq']}; now its state is {row['state']}."]
    if row["state"] == "needs_attention":
        return [str(row["note"])]
    if view.ended:
        return [explain_run_end(row)]
    sentences: list[str] = []
    if row["note"]:
        sentences.append(f"{row['note']}.")
    if not view.run_workers:
        sentences.append(
            "No run worker is alive to drive it. Start one with `tidemill up app.py` or `tidemill worker app.py`."
        )
    waiting = [name for name, node in view.state.nodes.items() if node.status == "waiting"]
    if waiting:
        what = f"an answer to {waiting[0]!r}" if len(waiting) == 1 else f"{len(waiting)} answers"
        command = f"tidemill dag submit {view.id} {waiting[0]} '{_example(view, waiting[0])}'"
        sentences.append(f"It waits for {what}: {command}")
    if sentences or not view.run_workers:
        return sentences
    if row["owner"] is not None:
        return [f"It is driven by {row['owner_host']} (pid {row['owner_pid']})."]
    if (start_at := row.get("start_at")) is not None:
        return [explain_start(start_at) if view.rate is None else explain_run_rate(row, view.rate)]
    if row["awake"]:
        return ["It waits for a run worker."]
    return ["It waits for its jobs."]


def why_node(view: DagView, name: str, jobs: Sequence[Job]) -> str:
    """Explain the state of a node in a sentence; for a node with a job, what the job does."""
    node = view.state.nodes[name]
    if node.status == "running" and node.items is None:
        return f"{name!r}: {_why_job(view, jobs)}"
    if node.status == "running" and jobs and not any(job["state"] == "running" for job in jobs):
        return f"{explain(view.program, view.state, name)}; {why_job(jobs[0])}"
    return explain(view.program, view.state, name)


def why_job(job: Job) -> str:
    """Explain what a node's job waits for or does: `its job 17 waits: no worker serves queue gpu`."""
    if job["state"] == "running":
        where = f" on {job['worker_host']} (pid {job['worker_pid']})" if job["worker_host"] else ""
        sentences = [f"its job {job['id']} runs{where}"]
        if job["note"]:
            sentences.insert(0, str(job["note"]))
        if job["attempt"] > 1:
            sentences.append(f"attempt {job['attempt']}")
        if job["cancel_reason"]:
            sentences.append(f"asked to stop: {job['cancel_reason']}")
        return ", ".join(sentences)
    hindered = [*explain_workers(job), *explain_control(job)]
    if job["state"] == "ready" and job["due_in"] <= 0 and hindered:
        return f"its job {job['id']} waits: {_joined(hindered)}"
    return f"its job {job['id']} waits on queue {job['queue']}: {_joined(explain_job(job)[1:])}"


def _node(view: DagView, row: TreeRow, jobs: Sequence[Job]) -> NodeView:
    node = view.state.nodes[row.node]
    return NodeView(
        row.node,
        row.status,
        row.done,
        row.total,
        _moment(row.began),
        _moment(row.ended),
        row.note,
        why_node(view, row.node, jobs),
        _about(view, row, node, jobs),
        node.carried,
        [
            NodeJobLine(
                **{name: job[name] for name in ("id", "state", "queue", "attempt", "progress", "note", "running_for")},
                item=None if node.items is None else view.program.item_of(view.state, job["work"]),
            )
            for job in jobs
        ],
    )


def _line(node: NodeView, branch: str, label: str, now: float) -> NodeLine:
    single = node.jobs[0] if len(node.jobs) == 1 and node.total is None else None
    shown = "queued" if node.state == "running" and single is not None and single.state != "running" else node.state
    far = single.progress if single is not None else None
    if node.total is not None:
        far = (node.done or 0) / node.total if node.total else 1.0
    count = "" if node.total is None else f"{node.done}/{node.total}"
    end = node.ended.timestamp() if node.state in FINAL and node.ended is not None else now
    took = None if node.began is None else max(0.0, end - node.began.timestamp())
    return NodeLine(branch, label, shown, far, count, took, node.about)


def _about(view: DagView, row: TreeRow, node: NodeState, jobs: Sequence[Job]) -> str:
    """Return the details of a node beside its state."""
    again = " (carried over)" if node.carried else ""
    match row.status:
        case "succeeded":
            return f"{node.note}{again}".strip()
        case "failed" | "cancelled" if node.error is not None:
            return f"{node.error.kind}: {node.error.message}"
        case "running" if node.items is not None:
            return _about_items(node, jobs)
        case "running" if row.total is not None:
            return ""
        case "running":
            return _why_job(view, jobs)
        case "waiting":
            due = "" if node.due is None else f" (within {format_duration(max(0, round(node.due - view.now)))})"
            return f"{node.prompt}{due}"
        case "skipped" | "cancelled" if node.note:
            return f"{node.note}{again}"
    sentence = explain(view.program, view.state, row.node)
    return sentence.removeprefix(f"{row.node!r} ").removeprefix("never runs: ")


def _about_items(node: NodeState, jobs: Sequence[Job]) -> str:
    items = node.items
    assert items is not None  # noqa: S101 - only maps have items
    if jobs and not any(job["state"] == "running" for job in jobs):
        return why_job(jobs[0])
    parts = [f"{len(items.working)} running", f"{len(items.todo)} not started"]
    if items.failed:
        parts.append(f"{len(items.failed)} failed")
    return ", ".join(part for part in parts if not part.startswith("0 "))


def _items(node: NodeView, branch: str) -> list[NodeLine]:
    """Some of the items that run now; those that report progress come first."""
    running = sorted((job for job in node.jobs if job.state == "running"), key=lambda job: job.progress is None)
    return [
        NodeLine(branch, f"item {job.item}", "running", job.progress, "", job.running_for, job.note or "")
        for job in running[:MOST_ITEMS_SHOWN]
        if job.item is not None
    ]


def _why_job(view: DagView, jobs: Sequence[Job]) -> str:
    if jobs:
        return why_job(jobs[0])
    if view.tick is not None or not view.all_jobs:
        return UNSEEN_JOB
    return "its job has ended, and the run has not processed the end yet"


def _example(view: DagView, name: str) -> str:
    """Return an example of an answer, as far as the schema describes it."""
    schema = getattr(view.program.plan.steps[name].spec, "schema", None)
    fields = schema.get("properties") if isinstance(schema, dict) else None
    return "{" + ", ".join(f'"{field}": ...' for field in fields) + "}" if fields else "..."


def _joined(sentences: Sequence[str]) -> str:
    text = " ".join(sentences).strip()
    return f"{text[:1].lower()}{text[1:]}".removesuffix(".")


def _moment(at: float | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, UTC)
