"""Create the jobs of nodes; everything that is the same for all runs of a node is computed once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.jobs.job import DEFAULT_QUEUE, JobOptions, NewJob
from tidemill.core.ticks import RunWork
from tidemill.dags.definition.plan import PlannedNode, task_of
from tidemill.engine.jobs.task import Task, TaskOptions
from tidemill.store.runs.run_turn import JobRow, keys_of


class NodeJob:
    """Creates the jobs of one node, for any run. With `named`, a job stores the name of its node."""

    def __init__(self, step: PlannedNode, task: Task[Any, Any] | None, *, named: bool) -> None:
        spec = task_of(step)
        declared = JobOptions() if task is None else task.job_options or JobOptions()
        options = msgspec.structs.replace(
            declared,
            retry=spec.retry or declared.retry,
            budget=spec.budget if spec.budget is not None else declared.budget,
            stall=spec.stall if spec.stall is not None else declared.stall,
            required_model=spec.required_model or declared.required_model,
            node=step.name if named else None,
        )
        usual = TaskOptions(DEFAULT_QUEUE) if task is None else task.options
        self._task = task
        self._queue = spec.queue or usual.queue
        self._name = spec.task
        self._own_priority = spec.priority
        self._priority = usual.priority if spec.priority is None else spec.priority
        self._named = named
        self._options = None if options == JobOptions() else encode(options)
        self._tags = encode(usual.tags) if usual.tags else None
        self._with_keys = task if task is not None and task.is_shared else None
        self._no_args: bytes | None = None
        NewJob(self._queue, self._name, msgspec.Raw(b"{}"), self._priority).validate()

    def row(self, run: int, command: RunWork, priority: int | None = None) -> JobRow:
        """Create the job for a piece of work; a `PayloadError` if its arguments do not fit the task."""
        if priority is None or self._own_priority is not None:
            priority = self._priority
        options = self._options
        if self._named and options is not None:
            options = options[:-1] + b',"run":%d}' % run
        args = self._args(command.input)
        keys = None if self._with_keys is None else keys_of(self._with_keys.new_job(args))
        return JobRow(self._queue, self._name, args, priority, None, 0.0, None, options, None, self._tags, None, keys)

    def _args(self, given: Any) -> bytes:
        if given:
            return encode(given) if self._task is None else self._task.signature.pack(given)
        if self._no_args is None:
            self._no_args = b"{}" if self._task is None else self._task.signature.pack({})
        return self._no_args


class NodeJobs:
    """Creates the jobs for the nodes of one dag."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]], *, named: bool) -> None:
        self._tasks = tasks
        self._named = named
        self._known: dict[str, NodeJob] = {}

    def row(self, run: int, step: PlannedNode, command: RunWork, priority: int | None = None) -> JobRow:
        """Create the job for a piece of work of a node, with the priority of its run unless the node has its own."""
        known = self._known.get(step.name)
        if known is None:
            task = self._tasks.get(task_of(step).task)
            known = NodeJob(step, task, named=self._named)
            if task is not None:
                self._known[step.name] = known
        return known.row(run, command, priority)
