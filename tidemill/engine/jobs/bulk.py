"""The jobs of many calls that share their options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tidemill.core.jobs.job import JobOptions, NewJob
from tidemill.engine.jobs.task import KEYS, Task

AnyTask = Task[Any, Any, Any]


class ManyJobs:
    """The task and arguments of each job, and the fields that options set. Jobs that are alike are stored together."""

    def __init__(
        self, calls: Sequence[AnyTask], arguments: Sequence[bytes], fields: Callable[[AnyTask], dict[str, Any]]
    ) -> None:
        self.calls = calls
        self.arguments = arguments
        self.tasks = list(dict.fromkeys(calls))
        self._fields = {task: fields(task) for task in self.tasks}

    @property
    def alike(self) -> bool:
        """Whether the jobs differ only in their arguments; keys may depend on an argument."""
        if len(self.tasks) > 1:
            return False
        given = self._fields[self.tasks[0]].keys()
        return not self.tasks[0].is_shared and given.isdisjoint(KEYS)

    def carry(self, trace: str) -> None:
        """Let the jobs continue a trace."""
        for task, fields in self._fields.items():
            options = task.job_options or JobOptions()
            own = {name: fields.pop(name, None) or getattr(options, name) for name in ("required_model", "webhook")}
            fields["options"] = msgspec.structs.replace(options, trace=trace, **own)

    def first(self) -> NewJob:
        return self._job(self.calls[0], self.arguments[0])

    def each(self, part: slice = slice(None)) -> list[NewJob]:
        """The jobs one by one: all, or a part of them."""
        calls, given = self.calls[part], self.arguments[part]
        if not self.alike:
            return [self._job(task, arguments) for task, arguments in zip(calls, given, strict=True)]
        first = self.first()
        return [msgspec.structs.replace(first, args=msgspec.Raw(arguments)) for arguments in given]

    def _job(self, task: AnyTask, arguments: bytes) -> NewJob:
        return task.new_job(arguments, **self._fields[task])
