"""The options of jobs as operations take them: the same for one job, many jobs and a batch."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from tidemill.ops.operator.operation import Arguments, doc


class OptionsOfJobs(Arguments, frozen=True, kw_only=True):
    """The options that jobs may have besides their arguments."""

    delay: Annotated[str | float | None, doc("Not before this long from now: 30s, 5m, 1h30m.")] = None
    at: Annotated[datetime | None, doc("Not before this date and time: 2030-01-31T12:00:00+01:00.")] = None
    priority: Annotated[int | None, doc("0 to 9; 9 goes first.")] = None
    queue: Annotated[str | None, doc("Another queue than the task's own.")] = None
    unique_key: Annotated[str | None, doc("No second unfinished job of this task with this key.")] = None
    unique_for: Annotated[str | float | None, doc("Hold the unique key for this long.")] = None
    deadline: Annotated[str | float | None, doc("Drop the job if it has not started within this time.")] = None
    concurrency_key: Annotated[str | None, doc("The key of jobs of which only a limited number runs at a time.")] = None
    max_concurrency: Annotated[int | None, doc("How many jobs that share the concurrency key run at a time.")] = None
    fair_key: Annotated[str | None, doc("Jobs of different keys share their queue.")] = None
    webhook: Annotated[str | None, doc("The address to which its outcome is posted when it has ended.")] = None
    rate_key: Annotated[str | None, doc("Jobs that share this key start at most at the rate of their task.")] = None
    required_model: Annotated[str | None, doc("Another model than the task's own.")] = None
    tags: Annotated[list[str] | None, doc("Tags to find the job by.")] = None


class OptionsOfOne(OptionsOfJobs, frozen=True, kw_only=True):
    """The options of a job that is enqueued alone."""

    debounce: Annotated[
        str | float | None, doc("Run this long after the last call with this unique key, with its arguments.")
    ] = None
