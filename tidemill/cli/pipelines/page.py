"""What `tidemill pipeline` prints: counts by stage, plans, and the story of a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from rich.text import Text

from tidemill.cli.render import ago, cut, out, short, table
from tidemill.pipelines.reducer.plan import BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import kind_of_reason
from tidemill.pipelines.runner.operate import StateStory, status_of
from tidemill.pipelines.view.pipeline_view import PipelineView

STYLES = {
    "fresh": "green",
    "building": "blue",
    "stale": "cyan",
    "waiting": "",
    "failed": "red",
    "needs_attention": "bold red",
    "paused": "yellow",
    "needs approval": "yellow",
    "orphan": "dim",
}


def print_counts(told: Mapping[str, Any]) -> None:
    """How a pipeline is."""
    console = out()
    counts, paused = told["stages"], told["paused"]
    console.print(f"{told['pipeline']}  {told['root']}", style="bold")
    if "" in paused:
        console.print(f"  paused by {paused['']}", style="yellow")
    words = [word for word in STYLES if any(row.get(word) for row in counts.values())] or ["fresh"]
    made = table("stage", *words, "bytes", "", numbers=(*words, "bytes"))
    for stage, row in counts.items():
        cells = [Text(f"{row.get(word, 0):,}", style=STYLES[word] if row.get(word) else "dim") for word in words]
        made.add_row(
            stage, *cells, f"{told['bytes'][stage]:,}", f"paused by {paused[stage]}" if stage in paused else ""
        )
    console.print(made)
    print_problems(told["problems"], told["notes"])


def print_problems(problems: Iterable[str], notes: Iterable[str]) -> None:
    """What cannot be looked at, and what is strange."""
    for problem in problems:
        out().print(f"  {problem}", style="red")
    for note in notes:
        out().print(f"  {note}", style="yellow")


def print_plan(pipeline_view: PipelineView, plan: BuildPlan, limit: int) -> None:
    """What would be done, and why."""
    console = out()
    console.print(
        f"{pipeline_view.pipeline.name}: {len(plan.builds):,} to build, {len(plan.holds):,} held, "
        f"{sum(plan.fresh.values()):,} fresh, {len(plan.orphans):,} orphans",
        style="bold",
    )
    made = table("state", "", "why", wide="why")
    for step in plan.steps[:limit]:
        word = "build" if step.is_build else status_of(step)
        made.add_row(f"{step.stage.name}/{step.entity}", Text(word, style=STYLES.get(word, "cyan")), str(step.reason))
    if plan.steps:
        console.print(made)
    if len(plan.steps) > limit:
        console.print(f"  and {len(plan.steps) - limit:,} more", style="dim")
    for stage, entity in plan.orphans[:limit]:
        console.print(f"  orphan  {stage.name}/{entity}", style="dim")
    print_problems((*pipeline_view.problems, *plan.problems), pipeline_view.notes)


def step_json(step: BuildStep) -> dict[str, Any]:
    """A step for programs."""
    return {
        "stage": step.stage.name,
        "entity": step.entity,
        "path": None if step.stage.scatter else step.stage.quick_path(step.entity),
        "status": status_of(step),
        "reason": kind_of_reason(step.reason),
        "detail": msgspec.to_builtins(step.reason),
        "told": str(step.reason),
    }


def story_json(story: StateStory) -> Any:
    return msgspec.to_builtins(story, enc_hook=str)


def print_story(story: StateStory) -> None:
    """Everything that is known of a state."""
    console = out()
    title = (f"{story.pipeline}/{story.stage}/{story.entity}  ", "bold")
    console.print(Text.assemble(title, (story.status, STYLES.get(story.status, ""))))
    for path in story.paths:
        console.print(f"  output   {path}")
    if story.built_at is not None:
        took = f", took {short(story.took)}" if story.took is not None else ""
        console.print(f"  built    {ago(story.built_at)} by {story.built_by}{took}")
    console.print("\nwhy", style="bold")
    console.print(f"  {story.told}")
    if story.failure is not None:
        console.print(f"  failed {story.failure['attempts']} times, last {ago(story.failure['failed_at'])}")
        for line in story.failure["log"].strip().splitlines()[-12:]:
            console.print(f"    {line}", style="dim")
    console.print("\ninputs", style="bold")
    for path, content in story.inputs.items():
        made = f"  made by {story.made_by[path]}" if path in story.made_by else ""
        console.print(f"  {path}  {content[:12] or 'not there'}{made}")
    further = [name for name in story.made_from if name not in story.inputs and name not in story.made_by.values()]
    if further:
        console.print("\nmade from", style="bold")
        for name in further[:20]:
            console.print(f"  {name}")
    if story.taken_by:
        console.print("\ntaken by", style="bold")
        for name in story.taken_by[:20]:
            console.print(f"  {name}")
    console.print("\ncode", style="bold")
    same = (
        "the code of now"
        if story.code == story.code_now
        else f"built by {story.code or 'nobody'}, now {story.code_now}"
    )
    console.print(f"  {same}")
    for name, value in sorted(story.parts.items()):
        console.print(f"  {name}  {value}", style="dim")
    if story.builds:
        console.print("\nbuilds", style="bold")
        for build in story.builds:
            took = "" if build["took"] is None else short(build["took"])
            why = build["log"] if build["outcome"] == "failed" else build["reason"]
            console.print(f"  {ago(build['at']):<10} {build['outcome']:<9} {took:<7} {cut(why or '', 90)}")
