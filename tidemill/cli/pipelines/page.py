"""What `tidemill pipeline` prints: counts by stage, plans, builds, and one state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from tidemill.cli.render import ago, counted, cut, indented, out, short, table
from tidemill.core.printable import on_one_line
from tidemill.ops.pipelines.lineage import ChangePreview, Lineage
from tidemill.ops.pipelines.pipelines import PipelineLine, why_empty
from tidemill.ops.pipelines.plan import PlanReport
from tidemill.pipelines.view.content_preview import EarlierContent
from tidemill.pipelines.view.state_details import Build, StateDetails

MOST_NAMED = 20
MOST_LOG_LINES = 12

STYLES = {
    "fresh": "green",
    "building": "blue",
    "stale": "cyan",
    "blocked": "",
    "failed": "red",
    "needs_attention": "bold red",
    "paused": "yellow",
    "needs_approval": "yellow",
    "orphan": "dim",
}


def print_pipeline(line: PipelineLine) -> None:
    """How many states of each stage are fresh, stale, failed and so on."""
    console = out()
    console.print(f"{line.name}  {line.place}", style="bold")
    if line.paused_by:
        console.print(f"  paused by {line.paused_by}", style="yellow")
    states = [state for state in STYLES if line.counts.get(state)] or ["fresh"]
    made = table("stage", *states, "bytes", "", numbers=(*states, "bytes"))
    for stage in line.stages:
        cells = [
            Text(f"{stage.counts.get(each, 0):,}", style=STYLES[each] if stage.counts.get(each) else "dim")
            for each in states
        ]
        made.add_row(stage.name, *cells, f"{stage.bytes:,}", f"paused by {stage.paused_by}" if stage.paused_by else "")
    console.print(made)
    if not line.counts:
        console.print(f"  {why_empty(line)}", style="yellow")
    print_problems(line.problems)


def print_problems(problems: Iterable[str]) -> None:
    """What cannot be read, or is wrong."""
    for problem in problems:
        out().print(f"  {problem}", style="red")


def _name(stage: str, entity: str) -> str:
    """A state as it is called: the only one of a stage without variables by its stage alone."""
    return f"{stage}/{entity}" if entity else stage


def print_plan(report: PlanReport) -> None:
    """What would be done, and why."""
    console = out()
    waiting = sum(part.states for part in report.parts if part.reason == "no_partner")
    console.print(
        f"{report.pipeline}: {report.builds:,} to build, {report.holds:,} held, "
        f"{f'{waiting:,} without all inputs, ' if waiting else ''}"
        f"{sum(report.fresh.values()):,} fresh, {report.orphans:,} orphans",
        style="bold",
    )
    made = table("state", "", "why", wide="why")
    for step in report.steps:
        word = "build" if step.is_build else step.state
        made.add_row(_name(step.stage, step.entity), Text(word, style=STYLES.get(word, "cyan")), step.explanation)
    if report.steps:
        console.print(made)
    if (more := report.builds + report.holds + waiting - len(report.steps)) > 0:
        console.print(f"  and {more:,} more", style="dim")
    if report.orphans:
        console.print("  `tidemill pipeline clean` lists the orphans", style="dim")
    print_problems(report.problems)


def print_change(found: ChangePreview) -> None:
    """What a change would have built."""
    title = (
        f"{found.what}: {counted(found.states, 'state')} would be built, which took {short(found.seconds)} last time"
    )
    out().print(title, style="bold")
    made = table("stage", "states", "took last time", numbers=("states", "took last time"))
    for part in found.parts:
        made.add_row(f"{part.pipeline}/{part.stage}", f"{part.states:,}", short(part.seconds))
    if found.parts:
        out().print(made)


def print_earlier(found: Sequence[EarlierContent]) -> None:
    """What a state held before its last builds, each with the lines that the build changed."""
    if not found:
        out().print("nothing: it was built once, is large, or is not a state", style="dim")
    for each in found:
        out().print(f"until {ago(each.replaced_at)}: {each.size:,} bytes", style="bold")
        for line in each.changes:
            style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
            out().print(Text(line, style=style), soft_wrap=True)


def draw_lineage(found: Lineage, pipeline: str | None) -> str:
    """All pipelines, or those around one, as Mermaid text."""
    ids = {node.id: f"n{at}" for at, node in enumerate(found.nodes)}
    kinds = {node.id: node for node in found.nodes}

    def is_shown(id: str) -> bool:
        return pipeline is None or kinds[id].pipeline == pipeline

    arrows = [(one, two) for one, two in found.arrows if is_shown(one) or is_shown(two)]
    shown = {id for arrow in arrows for id in arrow} | {id for id in ids if is_shown(id) and kinds[id].pipeline}
    lines = ["flowchart LR"]
    for node in found.nodes:
        if node.id in shown:
            counts = ", ".join(f"{number:,} {state}" for state, number in node.counts.items())
            text = f"{node.id}<br/>{counts}" if counts else node.id
            text = text.replace('"', "#quot;").replace("{", "#123;").replace("}", "#125;")
            lines.append(f'  {ids[node.id]}["{text}"]' if node.kind == "stage" else f'  {ids[node.id]}[/"{text}"/]')
    return "\n".join([*lines, *(f"  {ids[one]} --> {ids[two]}" for one, two in arrows)])


def print_builds(builds: Sequence[Build]) -> None:
    """Builds as a table."""
    made = table("when", "state", "outcome", "took", "size", "by", "why", numbers=("took", "size"), wide="why")
    for build in builds:
        made.add_row(
            ago(build.at),
            _name(build.stage, build.entity),
            build.outcome,
            "" if build.took is None else short(build.took),
            "" if build.size is None else f"{build.size:,}",
            build.built_by or "",
            cut(_why(build)),
        )
    out().print(made)


def print_state(state: StateDetails, why: Sequence[str]) -> None:
    """Everything about one state."""
    console = out()
    title = (on_one_line(f"{state.pipeline}/{_name(state.stage, state.entity)}  "), "bold")
    console.print(Text.assemble(title, (state.state, STYLES.get(state.state, ""))))
    for output in state.outputs:
        console.print(f"  output   {on_one_line(output.path)}", soft_wrap=True)
    if state.built_at is not None:
        took = f", took {short(state.took)}" if state.took is not None else ""
        console.print(f"  built    {ago(state.built_at)} by {state.built_by}{took}")
    console.print("\nwhy", style="bold")
    for sentence in why:
        console.print(indented(sentence), soft_wrap=True)
    if state.failure is not None:
        console.print(f"  failed {counted(state.failure.attempts, 'time')}, last {ago(state.failure.failed_at)}")
        for line in state.failure.log.strip().splitlines()[-MOST_LOG_LINES:]:
            console.print(f"    {line}", style="dim")
    if state.inputs:
        console.print("\ninputs", style="bold")
    for one in state.inputs:
        made_by = "" if one.made_by is None else f"  made by {one.made_by.stage}"
        console.print(f"  {on_one_line(one.path)}  {(one.content or 'missing')[:12]}{made_by}", soft_wrap=True)
    direct = {one.path for one in state.inputs} | {
        _name(by.stage, by.entity) for one in state.inputs if (by := one.made_by)
    }
    _print_names("made from", [name for name in state.made_from if name not in direct])
    _print_names("taken by", state.followed_by)
    console.print("\ncode", style="bold")
    by = "the current code" if state.code.built == state.code.now else f"code {state.code.built}"
    console.print(
        f"  built by {by}, now {state.code.now}" if state.code.built else f"  never built, now {state.code.now}"
    )
    for name, value in sorted(state.code.parts.items()):
        console.print(f"  {name}  {value}", style="dim")
    if state.builds:
        console.print("\nbuilds", style="bold")
    for build in state.builds:
        took = "" if build.took is None else short(build.took)
        console.print(f"  {ago(build.at):<10} {build.outcome:<9} {took:<7} {cut(_why(build), 90)}")


def _print_names(title: str, names: Sequence[str]) -> None:
    if names:
        out().print(f"\n{title}", style="bold")
    for name in names[:MOST_NAMED]:
        out().print(f"  {on_one_line(name)}", soft_wrap=True)


def _why(build: Build) -> str:
    return (build.log if build.outcome == "failed" else build.reason) or ""
