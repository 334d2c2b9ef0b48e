"""A run of a dag on one page, or on a terminal that is kept true: the tree of its nodes."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tidemill.cli.jobs.page import json_text
from tidemill.cli.render import ago, local, short
from tidemill.cli.runs.reported_run import told_run
from tidemill.core.codec import decode
from tidemill.dags.reducer.events import FINAL
from tidemill.dags.runner.runner import DagInput
from tidemill.dags.view.view import UNSEEN_JOB, DagView, NodeLine, lines, nodes_json, why_run

WIDE = 100
BAR = 10
GAP = "  "
LEAST_STATE, LEAST_TIME = "succeeded", "100ms"  # so that columns do not move while one looks
_BELOW = str.maketrans("├└─", "│  ")

STYLES = {
    "pending": "dim",
    "queued": "yellow",
    "running": "cyan",
    "waiting": "bold yellow",
    "succeeded": "green",
    "skipped": "dim",
    "failed": "bold red",
    "blocked": "red",
    "cancelled": "dim",
    "needs_attention": "bold red",
}


class RunPage(msgspec.Struct, frozen=True):
    """A run as it is shown, whoever tells it. `unkept` if nobody is there to drive it, as far as that is known."""

    run: dict[str, Any]
    state: str
    tick: int | None
    dag: Any
    nodes: list[dict[str, Any]]
    lines: list[NodeLine]
    now: float
    unkept: bool = False

    @property
    def id(self) -> str:
        return f"r{self.run['id']}"

    @property
    def why(self) -> list[str]:
        return self.run["why"]

    @property
    def ended(self) -> bool:
        return self.state not in ("running", "needs_attention")

    @property
    def counts(self) -> tuple[int, int]:
        """How many nodes have ended, and how many there are."""
        return sum(node["state"] in FINAL for node in self.nodes), len(self.nodes)

    @property
    def took(self) -> float:
        row = self.run
        end = row["ended_at"].timestamp() if row["ended_at"] is not None and self.ended else self.now
        return max(0.0, end - row["created_at"].timestamp())


def sheet_of(view: DagView) -> RunPage:
    """The sheet of a run that was read from the database."""
    given = decode(view.row["input"], DagInput)
    told = told_run(view.row, why_run(view))
    unkept = not view.run_workers
    return RunPage(told, view.run_state, view.tick, given.dag, nodes_json(view), lines(view), view.now, unkept)


def sheet_from(run: dict[str, Any], tree: dict[str, Any]) -> RunPage:
    """The sheet of a run that a server tells."""
    nodes = [{**node, "began": _moment(node["began"]), "ended": _moment(node["ended"])} for node in tree["nodes"]]
    now = time.time()
    told = {**run, "why": tree["why"]}
    return RunPage(told, tree["state"], tree["tick"], tree["definition"], nodes, _lines(nodes, now), now)


def page(sheet: RunPage, width: int, *, room: int | None = None) -> RenderableType:
    """Everything about a run, for reading; with `room`, no more lines of its tree than that."""
    done, total = sheet.counts
    found = sheet.lines if room is None else folded(sheet.lines, room)
    facts = Table.grid(padding=(0, 2, 0, 0))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in _facts(sheet):
        facts.add_row(name, value)
    return Group(
        _title(sheet),
        Padding(facts, (0, 0, 0, 2), expand=False),
        Text.assemble(("\nnodes", "bold"), (f"  {done} of {total} have ended", "dim")),
        Padding(tree_table(found, width - 2, wrap=True), (0, 0, 0, 2), expand=False),
        Text("\nwhy", style="bold"),
        *(Padding(Text(sentence), (0, 0, 0, 2), expand=False) for sentence in sheet.why),
    )


def live(sheet: RunPage, width: int, height: int) -> RenderableType:
    """The same for a terminal of this size, as it is now."""
    done, total = sheet.counts
    head = Text.assemble(_title(sheet), (f"  {done}/{total} nodes  {short(sheet.took)}", "dim"))
    hints = [Text(each, style="dim", overflow="ellipsis", no_wrap=True) for each in sheet.why]
    room = max(3, height - len(hints) - 2)
    return Group(head, tree_table(folded(sheet.lines, room), width, wrap=False), *hints)


def page_json(sheet: RunPage) -> dict[str, Any]:
    """The page for programs."""
    told = {name: value for name, value in sheet.run.items() if name != "input"}
    more = {"state": sheet.state, "args": sheet.run["input"], "dag": sheet.dag, "nodes": sheet.nodes}
    return {**told, **more}


def tree_table(found: Sequence[NodeLine], width: int, *, wrap: bool) -> Table:
    """The tree as a table; what does not fit is cut, or wrapped where there is room for that."""
    wide = width >= WIDE
    names = min(40 if wide else 26, max((len(each.branch + each.label) for each in found), default=0))
    progress = [_progress(each, wide) for each in found]
    times = ["" if each.took is None else short(each.took) for each in found]
    states = max(map(len, (LEAST_STATE, *(each.state for each in found))))
    taken = (names, states, max(map(len, ("", *progress))), max(map(len, (LEAST_TIME, *times))))
    rest = max(20, width - sum(taken) - len(GAP) * len(taken))
    made = Table.grid(padding=(0, len(GAP), 0, 0))
    for size, right in zip(taken, (False, False, False, True), strict=True):
        made.add_column(no_wrap=True, overflow="ellipsis", width=size, justify="right" if right else "left")
    made.add_column(no_wrap=True, overflow="ellipsis", max_width=rest)
    for at, each in enumerate(found):
        why = textwrap.wrap(each.why, rest) if wrap else [" ".join(each.why.split())]
        deeper = at + 1 < len(found) and len(found[at + 1].branch) > len(each.branch)
        below = f"\n{each.branch.translate(_BELOW)}{'│' if deeper else ''}" * (len(why) - 1)
        made.add_row(
            Text.assemble((each.branch, "dim"), each.label, (below, "dim")),
            Text(each.state, style=STYLES.get(each.state, "")),
            progress[at],
            times[at],
            Text("\n".join(why), style=_tone(each)),
        )
    return made


def folded(found: list[NodeLine], room: int) -> list[NodeLine]:
    """At most so many lines: what goes on stays, and what is over or far ahead becomes a count."""
    if len(found) <= room:
        return found
    rank = {"failed": 0, "waiting": 1, "running": 2, "queued": 3, "blocked": 4, "cancelled": 5, "pending": 6}

    def weight(at: int) -> tuple[int, bool, bool, int]:
        each = found[at]
        return rank.get(each.state, 7), each.far is None, each.why == UNSEEN_JOB, at

    best = sorted(range(len(found)), key=weight)
    kept = set(best[: max(1, room - 1)])
    left = [found[at].state for at in range(len(found)) if at not in kept]
    names = ", ".join(f"{left.count(name):,} {name}" for name in dict.fromkeys(left))
    return [found[at] for at in sorted(kept)] + [NodeLine("… ", f"{len(left):,} more", "", why=names)]


def _title(sheet: RunPage) -> Text:
    then = "" if sheet.tick is None else f"  at tick {sheet.tick}"
    words = f"  {sheet.run['workflow']}{then}"
    return Text.assemble((f"run {sheet.id}  ", "bold"), (sheet.state, STYLES.get(sheet.state, "")), words)


def _facts(sheet: RunPage) -> list[tuple[str, str]]:
    row, origin = sheet.run, sheet.run["origin"] or {}
    by = f" by {origin['by']}" if origin.get("by") else ""
    facts = [
        ("arguments", json_text(row["input"])),
        ("started", f"{local(row['created_at'])}  ({ago(row['created_at'])}){by}"),
        ("repeats", f"run r{origin['repeats']}" if origin.get("repeats") else ""),
        ("key", row["key"] or ""),
    ]
    if row["ended_at"] is not None and sheet.ended:
        facts.append(("ended", f"{local(row['ended_at'])}  (took {short(sheet.took)})"))
        facts.append(("result", "" if row["result"] is None else json_text(row["result"])))
    return [(name, value) for name, value in facts if value]


def _lines(nodes: list[dict[str, Any]], now: float) -> list[NodeLine]:
    """The tree of nodes as a server tells them."""
    last: dict[str, str] = {}
    for node in nodes:
        last[node["node"].rpartition("/")[0]] = node["node"]
    below: dict[str, str] = {}
    found: list[NodeLine] = []
    for node in nodes:
        name = node["node"]
        parent, _, label = name.rpartition("/")
        above, is_last = below.get(parent, ""), last[parent] == name
        below[name] = above + ("   " if is_last else "│  ")
        why = "" if name in last and node["state"] == "running" else _told(node)
        found.append(_line(node, above + ("└─ " if is_last else "├─ "), label, why, now))
    return found


def _line(node: dict[str, Any], branch: str, label: str, why: str, now: float) -> NodeLine:
    state, total = node["state"], node["total"]
    single = node["jobs"][0] if len(node["jobs"]) == 1 and total is None else None
    shown = "queued" if state == "running" and single is not None and single["state"] != "running" else state
    far = single["progress"] if single is not None else None
    if total is not None:
        far = (node["done"] or 0) / total if total else 1.0
    end = node["ended"].timestamp() if state in FINAL and node["ended"] is not None else now
    took = None if node["began"] is None else max(0.0, end - node["began"].timestamp())
    count = "" if total is None else f"{node['done']}/{total}"
    return NodeLine(branch, label, shown, far, count, took, why)


def _told(node: dict[str, Any]) -> str:
    """What there is to say of a node beside its state."""
    if node["state"] in ("succeeded", "skipped", "waiting") or (node["state"] == "cancelled" and node["note"]):
        return f"{node['note']}{' (carried over)' if node['carried'] else ''}".strip()
    said = node["why"].removeprefix(repr(node["node"])).lstrip(": ")
    return said.removeprefix("never runs: ").removeprefix("failed: ")


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)


def _progress(each: NodeLine, wide: bool) -> Text:
    words = each.count or ("" if each.far is None or each.state in FINAL else f"{each.far:.0%}")
    if not wide or each.far is None or each.state != "running":
        return Text(f"{words:>6}" if words else "")
    full = round(min(1.0, max(0.0, each.far)) * BAR)
    return Text.assemble(f"{words:>6} ", ("█" * full, "cyan"), ("░" * (BAR - full), "dim"))


def _tone(each: NodeLine) -> str:
    return {"failed": "red", "waiting": "yellow", "queued": "yellow"}.get(each.state, "dim")
