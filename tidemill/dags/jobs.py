"""The jobs of a run's nodes: what is the same for every run of a node is worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.core.codec import encode
from tidemill.core.job import DEFAULT_PRIORITY, DEFAULT_QUEUE, JobOptions, NewJob
from tidemill.core.ticks import RunWork
from tidemill.dags.plan import Step, task_of
from tidemill.engine.task import Task
from tidemill.store.turns import JobRow


class NodeJob:
    """How jobs for one node are made, whatever the run."""

    def __init__(self, step: Step, task: Task[Any, Any] | None) -> None:
        spec = task_of(step)
        declared = JobOptions() if task is None else task.job_options or JobOptions()
        options = msgspec.structs.replace(
            declared,
            retry=spec.retry or declared.retry,
            budget=spec.budget if spec.budget is not None else declared.budget,
            stall=spec.stall if spec.stall is not None else declared.stall,
            required_model=spec.required_model or declared.required_model,
            node=step.name,
        )
        queue, priority = (
            (DEFAULT_QUEUE, DEFAULT_PRIORITY) if task is None else (task.options.queue, task.options.priority)
        )
        self._queue = spec.queue or queue
        self._priority = priority if spec.priority is None else spec.priority
        self._task_name = spec.task
        self._task = task
        self._tags = encode(task.options.tags) if task is not None and task.options.tags else None
        self._options = encode(options)[:-1]  # The run's number goes at its end.
        self._by = encode(step.name)[1:-1]
        NewJob(self._queue, self._task_name, msgspec.Raw(b"{}"), self._priority).validate()
        self._no_args: bytes | None = None

    def row(self, run: int, command: RunWork) -> JobRow:
        """The job for one piece of work; a `PayloadError` if its arguments do not fit the task."""
        number = b"%d" % run
        options = self._options + b',"run":' + number + b"}"
        origin = b'{"by":"run r' + number + b" (" + self._by + b')"}'
        args = self._args(command.input)
        return (
            self._queue,
            self._task_name,
            args,
            self._priority,
            None,
            0.0,
            None,
            options,
            origin,
            self._tags,
        )

    def _args(self, given: Any) -> bytes:
        if given:
            return encode(given) if self._task is None else self._task.signature.pack(given)
        if self._no_args is None:
            self._no_args = b"{}" if self._task is None else self._task.signature.pack({})
        return self._no_args


class NodeJobs:
    """How jobs for the nodes of one dag are made."""

    def __init__(self, tasks: Mapping[str, Task[Any, Any]]) -> None:
        self._tasks = tasks
        self._known: dict[str, NodeJob] = {}

    def row(self, run: int, step: Step, command: RunWork) -> JobRow:
        known = self._known.get(step.name)
        if known is None:
            task = self._tasks.get(task_of(step).task)
            known = NodeJob(step, task)
            if task is not None:
                self._known[step.name] = known
        return known.row(run, command)
