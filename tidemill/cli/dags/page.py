"""A run of a dag on one page, or on a terminal that is redrawn: the tree of its nodes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tidemill.cli.jobs.page import json_text
from tidemill.cli.render import ago, facts_grid, local, short
from tidemill.dags.reducer.events import FINAL
from tidemill.dags.view.view import UNSEEN_JOB, NodeLine, lines
from tidemill.ops.runs.dags import DagTree
from tidemill.ops.runs.runs import Run
from tidemill.store.runs.runs import LIVE_RUN_STATES

WIDE = 100
BAR = 10
GAP = "  "
LEAST_STATE, LEAST_TIME = "succeeded", "100ms"  # so that columns do not move while the page is redrawn
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


class DagPage(msgspec.Struct, frozen=True):
    """A run of a dag as it is shown: the run, and its nodes."""

    run: Run
    tree: DagTree

    @property
    def ended(self) -> bool:
        return self.tree.state not in LIVE_RUN_STATES

    @property
    def lines(self) -> list[NodeLine]:
        return lines(self.tree.nodes, self.tree.at.timestamp())

    @property
    def counts(self) -> tuple[int, int]:
        """How many nodes have ended, and how many there are."""
        return sum(node.state in FINAL for node in self.tree.nodes), len(self.tree.nodes)

    @property
    def took(self) -> float:
        end = self.run.ended_at if self.run.ended_at is not None and self.ended else self.tree.at
        return max(0.0, (end - self.run.created_at).total_seconds())


def page(shown: DagPage, width: int, *, room: int | None = None) -> RenderableType:
    """Everything about a run, for reading; with `room`, no more lines of its tree than that."""
    done, total = shown.counts
    found = shown.lines if room is None else folded(shown.lines, room)
    return Group(
        _title(shown),
        facts_grid(_facts(shown)),
        Text.assemble(("\nnodes", "bold"), (f"  {done} of {total} have ended", "dim")),
        Padding(tree_table(found, width - 2, wrap=True), (0, 0, 0, 2), expand=False),
        Text("\nwhy", style="bold"),
        *(Padding(Text(sentence), (0, 0, 0, 2), expand=False) for sentence in shown.tree.why),
    )


def live(shown: DagPage, width: int, height: int) -> RenderableType:
    """The same for a terminal of this size, as it is now."""
    done, total = shown.counts
    head = Text.assemble(_title(shown), (f"  {done}/{total} nodes  {short(shown.took)}", "dim"))
    hints = [Text(each, style="dim", overflow="ellipsis", no_wrap=True) for each in shown.tree.why]
    room = max(3, height - len(hints) - 2)
    return Group(head, tree_table(folded(shown.lines, room), width, wrap=False), *hints)


def page_json(page: DagPage) -> dict[str, Any]:
    """The page for programs."""
    run, tree = msgspec.structs.asdict(page.run), page.tree
    args = run.pop("input")
    return {**run, "state": tree.state, "why": tree.why, "args": args, "dag": tree.definition, "nodes": tree.nodes}


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
            Text("\n".join(why), style=_style(each)),
        )
    return made


def folded(found: list[NodeLine], room: int) -> list[NodeLine]:
    """At most this many lines: running nodes stay, and finished or far nodes become a count."""
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


def _title(shown: DagPage) -> Text:
    tree = shown.tree
    then = "" if tree.tick is None else f"  at tick {tree.tick}"
    words = f"  {shown.run.workflow}{then}"
    return Text.assemble((f"run r{shown.run.id}  ", "bold"), (tree.state, STYLES.get(tree.state, "")), words)


def _facts(shown: DagPage) -> list[tuple[str, str]]:
    row, origin = shown.run, shown.run.origin or {}
    by = f" by {origin['by']}" if origin.get("by") else ""
    facts = [
        ("arguments", json_text(row.input)),
        ("started", f"{local(row.created_at)}  ({ago(row.created_at)}){by}"),
        ("repeats", f"run r{origin['repeats']}" if origin.get("repeats") else ""),
        ("key", row.key or ""),
    ]
    if row.ended_at is not None and shown.ended:
        facts.append(("ended", f"{local(row.ended_at)}  (took {short(shown.took)})"))
        facts.append(("result", "" if row.result is None else json_text(row.result)))
    return [(name, value) for name, value in facts if value]


def _progress(each: NodeLine, wide: bool) -> Text:
    words = each.count or ("" if each.far is None or each.state in FINAL else f"{each.far:.0%}")
    if not wide or each.far is None or each.state != "running":
        return Text(f"{words:>6}" if words else "")
    full = round(min(1.0, max(0.0, each.far)) * BAR)
    return Text.assemble(f"{words:>6} ", ("█" * full, "cyan"), ("░" * (BAR - full), "dim"))


def _style(each: NodeLine) -> str:
    return {"failed": "red", "waiting": "yellow", "queued": "yellow"}.get(each.state, "dim")
