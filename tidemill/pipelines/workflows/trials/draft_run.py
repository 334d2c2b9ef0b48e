"""A real run of a workflow's text, saved or not: what each node got and gave.

The nodes do their work: requests are sent, models are called. A pipeline runs for one entity, and its states are not
written. A draft runs as a job, `workflow-draft/NAME`: a worker has the credentials and the environment of real runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.retry import retry
from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.pipelines.definition.declared import DRAFT, QUEUE
from tidemill.pipelines.runner.build_job import Reach
from tidemill.pipelines.workflows.load import parse_workflow
from tidemill.pipelines.workflows.node_runs import NodeRun, cut_text, recorded
from tidemill.pipelines.workflows.trials.dry_run import dry_run


class StageDraft(msgspec.Struct):
    """What a stage of a pipeline would write for the entity."""

    stage: str
    output: str | None
    content: str | None
    note: str


class DraftRun(msgspec.Struct):
    """A run of a text: its nodes in the order in which they ran, and why it ended early, if it did."""

    nodes: list[NodeRun]
    stages: list[StageDraft]
    error: str | None
    took: float


def draft_task(name: str, reach: Reach) -> Task[Any, Any]:
    """The task whose jobs run drafts of the workflow of this name."""

    async def run(text: str, payload: Any = None, entity: str | None = None, until: str | None = None) -> dict:
        """Run the text of a workflow once, and keep what each node got and gave."""
        began = time.perf_counter()
        draft = DraftRun([], [], None, 0.0)
        with recorded() as runs:
            try:
                await _run(draft, json.loads(text), name, reach, payload, entity, until)
            except TidemillError as error:
                draft.error = str(error)
        draft.nodes = runs()
        draft.took = time.perf_counter() - began
        return msgspec.to_builtins(draft)

    return Task(run, f"{DRAFT}/{name}", TaskOptions(queue=QUEUE, tags=("draft",), retry=retry(1)))


async def _run(
    draft: DraftRun,
    data: Mapping[str, Any],
    name: str,
    reach: Reach,
    payload: Any,
    entity: str | None,
    until: str | None,
) -> None:
    loaded = parse_workflow(data, name)
    if loaded.triggers:
        await loaded.triggers[0].run(payload, until=until)
        return
    if entity is None:
        raise ConfigError("a draft of a pipeline runs for one entity: name it")
    found = await dry_run(data, name, entity, database=await reach(), is_real=True, until=until)
    for each in found.stages:
        draft.stages.append(StageDraft(each.stage, each.output, cut_text(each.content), each.why))
        if each.error is not None:
            draft.error = draft.error or f"stage {each.stage}: {each.error}"
