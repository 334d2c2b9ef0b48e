"""Many jobs of one task that differ only in their arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidemill.core.job import JobOptions, NewJob
from tidemill.engine.jobs.task import Task


class ManyJobs:
    """One task, one set of options, and the arguments of each job. Jobs alike are stored together."""

    def __init__(self, task: Task[Any, Any], fields: Mapping[str, Any], arguments: Sequence[bytes]) -> None:
        self.arguments = arguments
        self.task = task
        self._fields = fields

    @property
    def alike(self) -> bool:
        """Whether the jobs differ only in their arguments; a concurrency key may depend on an argument."""
        return self.task.options.concurrency_key is None

    def carrying(self, trace: str) -> ManyJobs:
        """The same jobs, continuing a trace."""
        options = msgspec.structs.replace(self.task.job_options or JobOptions(), trace=trace)
        return ManyJobs(self.task, {**self._fields, "options": options}, self.arguments)

    def first(self) -> NewJob:
        return self.task.new_job(self.arguments[0], **self._fields)

    def each(self) -> list[NewJob]:
        """The jobs one by one."""
        if not self.alike:
            return [self.task.new_job(args, **self._fields) for args in self.arguments]
        first = self.first()
        return [msgspec.structs.replace(first, args=msgspec.Raw(args)) for args in self.arguments]
