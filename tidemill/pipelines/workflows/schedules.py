"""The schedules of workflow files: stored like those of the program, so that they are listed, paused and run now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.engine.worker.context import find_current_job
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.workflows.node_runs import recorded
from tidemill.pipelines.workflows.nodes import NodeError
from tidemill.pipelines.workflows.questions import AskLater
from tidemill.pipelines.workflows.read import TriggerWorkflow
from tidemill.store.jobs.schedules.schedules import DeclaredSchedule

QUEUE = "pipelines"
#: What declares them, as `tidemill.schedule.declared_by` says it.
FILES = "workflow files"


def trigger_task(workflow: TriggerWorkflow, ask: AskLater | None = None) -> Task[Any, Any]:
    """The task whose jobs run a workflow once; `ask` has people asked what its nodes ask."""
    name = f"workflow/{workflow.name}"

    async def run(payload: Any = None, until: str | None = None, resumed: dict | None = None) -> dict:
        job = find_current_job()
        payload = _with_fire_time(payload)
        with recorded() as runs:
            try:
                if ask is None or job is None:
                    return await workflow.run(payload, until=until)
                key = f"question of job {job.id}"
                return await workflow.run_until_asked(payload, until, resumed, ask=ask, task=name, key=key)
            except NodeError:
                for each in runs():  # A failed job has no result: its log says how far it came.
                    log.info("node", node=each.name, items=each.items, fields=each.fields, outputs=each.outputs)
                raise

    run.__doc__ = f"Run the workflow {workflow.name} once."
    options = TaskOptions(
        queue=QUEUE,
        tags=("workflow",),
        concurrency_key=workflow.concurrency_key,
        max_concurrency=workflow.max_concurrency,
    )
    return Task(run, name, options)


def _with_fire_time(payload: Any) -> Any:
    """The payload of a schedule's job, with the time that it was fired for."""
    job = find_current_job()
    if job is None or job.fire_time is None or not isinstance(payload, Mapping):
        return payload
    return {**payload, "scheduledAt": job.fire_time.timestamp()}


def workflow_schedules(
    workflows: Iterable[TriggerWorkflow], task_of: Callable[[str], Task[Any, Any]], declared_by: str
) -> list[DeclaredSchedule]:
    """The schedules of workflows; of the fires that are missed while nothing runs, the last is made up for."""
    found: list[DeclaredSchedule] = []
    for workflow in workflows:
        task = task_of(workflow.name)
        for at, spec in enumerate(workflow.schedules):
            name = task.name if at == 0 else f"{task.name}#{at + 1}"
            job = task.new_job(task.signature.bind((), {"payload": {"schedule": name}}))
            found.append(DeclaredSchedule(name, spec, job, "one", 0.0, declared_by))
    return found
