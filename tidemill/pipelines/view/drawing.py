"""Pictures of a pipeline, as Mermaid text and as SVG: patterns as boxes, stages as the arrows' makers."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.drawing.render import Box, quoted, svg
from tidemill.pipelines.definition.pipeline import Pipeline, check_order, makers

_SOURCE, _STAGE = "#f1f5f9", "#dbeafe"


def draw_pipeline(pipeline: Pipeline, counts: Mapping[str, Mapping[str, int]] | None) -> str:
    """A pipeline as a Mermaid flowchart; with counts, each stage says how its states are."""
    lines, sources = ["flowchart TD"], _sources(pipeline)
    names = {source: f"s{at}" for at, source in enumerate(sources)}
    numbers = {stage: f"n{at}" for at, stage in enumerate(pipeline.stages)}
    lines += [f"    {names[source]}([{quoted(source)}])" for source in sources]
    for stage in pipeline.stages.values():
        state_lines = "".join(
            f"<br/>{word} {count}" for word, count in (counts or {}).get(stage.name, {}).items() if count
        )
        label = quoted(f"{stage.name}: {stage.output.text}").removesuffix('"') + f'{state_lines}"'
        lines.append(f"    {numbers[stage.name]}[{label}]")
    for stage in pipeline.stages.values():
        for maker in makers(stage, pipeline.stages.values()):
            lines.append(f"    {numbers[maker.name]} --> {numbers[stage.name]}")
        lines += [
            f"    {names[source]} --> {numbers[stage.name]}" for source in sources if stage.name in sources[source]
        ]
    return "\n".join(lines)


def draw_pipeline_svg(pipeline: Pipeline) -> str:
    """The same as an SVG picture."""
    sources = _sources(pipeline)
    depth: dict[str, int] = {}
    arrows: list[tuple[str, str]] = []
    for stage in check_order(pipeline.stages.values()):
        above = makers(stage, pipeline.stages.values())
        depth[stage.name] = 1 + max((depth[maker.name] for maker in above), default=0)
        arrows += [(maker.name, stage.name) for maker in above]
        arrows += [(source, stage.name) for source, takers in sources.items() if stage.name in takers]
    table = [[Box(source, source, _SOURCE, pill=True) for source in sources]]
    for level in range(1, max(depth.values(), default=0) + 1):
        table.append([Box(name, name, _STAGE) for name, at in depth.items() if at == level])
    return svg(table, arrows)


def _sources(pipeline: Pipeline) -> dict[str, list[str]]:
    """The patterns that no stage makes, and who takes them."""
    found: dict[str, list[str]] = {}
    for stage in pipeline.stages.values():
        for one in stage.inputs:
            if not any(one.pattern.overlaps(s.output) for s in pipeline.stages.values() if s is not stage):
                found.setdefault(one.pattern.text, []).append(stage.name)
    return found
