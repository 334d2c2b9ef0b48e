"""`tidemill retry` and `tidemill cancel`: jobs by id, or all that match a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from cyclopts import Parameter

from tidemill.cli.arguments import Yes, options_of
from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.jobs.enqueue import read_arguments
from tidemill.cli.render import out
from tidemill.cli.runs.send_fork import cancel_runs, retry_runs
from tidemill.core.errors import ConfigError
from tidemill.ops.jobs.jobs import JobSelection, JobsReached, RetryJobs, cancel_jobs, retry_jobs
from tidemill.ops.operator.operation import Operation, Operator
from tidemill.store.jobs.pages import JobFilter

_FEW = 10

Ids = Annotated[str, Parameter(help="The jobs (12) and runs (r12); or select jobs with the options.")]


@options_of(JobFilter, without=("up_to",))
def retry(
    wanted: JobFilter,
    *ids: Ids,
    args: Annotated[
        str | None, Parameter(help="Other arguments as a JSON object, in place of those of the same name.")
    ] = None,
    yes: Yes = False,
    connection: ServerOptions = ANYWHERE,
) -> int:
    """Run jobs again: waiting ones now, finished ones as new jobs. By options, failed jobs unless --state says more.

    A run of a workflow that needs attention goes on: its steps in progress are tried again from their beginning.
    """
    edited = None if args is None else read_arguments(args)

    def select(selection: JobSelection) -> RetryJobs:
        return RetryJobs(ids=selection.ids, filter=selection.filter, args=edited)

    return _act(
        "retry", retry_jobs, retry_runs, retry_message, ids, wanted, yes=yes, connection=connection, select=select
    )


@options_of(JobFilter, without=("up_to",))
def cancel(wanted: JobFilter, *ids: Ids, yes: Yes = False, connection: ServerOptions = ANYWHERE) -> int:
    """Cancel jobs: waiting ones at once, running ones as soon as their task can be stopped. Runs as well."""
    return _act("cancel", cancel_jobs, cancel_runs, cancel_message, ids, wanted, yes=yes, connection=connection)


def retry_message(reached: JobsReached, ids: tuple[int, ...]) -> str:
    """What a retry did, in one line."""
    done, asked, _ = _named(reached, ids)
    parts = {f"enqueued again as {asked}": reached.asked, f"due now: {done}": reached.done}
    return _joined(parts) or "nothing to retry: the jobs are running, or their unique keys are taken"


def cancel_message(reached: JobsReached, ids: tuple[int, ...]) -> str:
    """What a cancel did, in one line."""
    done, asked, unchanged = _named(reached, ids)
    parts = {
        f"cancelled: {done}": reached.done,
        f"asked to stop: {asked}": reached.asked,
        f"already ended or asked to stop: {unchanged}": reached.unchanged,
    }
    return _joined(parts) or "nothing to cancel"


def _joined(parts: dict[str, int]) -> str:
    return "; ".join(part for part, count in parts.items() if count)


def _act(
    verb: str,
    operation: Operation[Any, JobsReached],
    on_runs: Callable[[Sequence[str], ServerOptions], None],
    message: Callable[[JobsReached, tuple[int, ...]], str],
    named: Sequence[str],
    wanted: JobFilter,
    *,
    yes: bool,
    connection: ServerOptions,
    select: Callable[[JobSelection], JobSelection] = lambda selection: selection,
) -> int:
    """Act on named runs and jobs, or on jobs that match a filter once the user has agreed to how many."""
    runs = [each for each in named if each.startswith("r")]
    ids = tuple(_job_id(each) for each in named if not each.startswith("r"))
    if runs:
        on_runs(runs, connection)
        if not ids and wanted == JobFilter():
            return 0
    if bool(ids) == (wanted != JobFilter()):
        raise ConfigError(f"say which jobs to {verb}: either ids, or --queue, --task, --tag, --state")

    async def work(at: Operator) -> int:
        if ids:
            selection = JobSelection(ids=list(ids))
        else:
            assert operation.preview is not None  # noqa: S101 - both operations have one
            found = await at.do(operation.preview, wanted)
            if not found.count:
                others = "; those that have been repeated already do not count" if operation is retry_jobs else ""
                out().print(f"no job to {verb} matches{others}", style="dim")
                return 0
            if not (yes or agreed(f"{verb} {_jobs(found.count)}")):
                return 1
            selection = JobSelection(filter=msgspec.structs.replace(wanted, up_to=found.up_to))
        out().print(message(await at.do(operation, select(selection)), ids))
        return 0

    return connection.run(work)


def _named(reached: JobsReached, ids: tuple[int, ...]) -> tuple[str, str, str]:
    """The jobs that were done, asked and left unchanged: by id where ids were given and all are known."""
    first, done = reached.ids, reached.done
    if not ids or len(first) < reached.count:
        return _jobs(done), _jobs(reached.asked), _jobs(reached.unchanged)
    rest = [each for each in dict.fromkeys(ids) if each not in first]
    return _some(first[:done]), _some(first[done:]), _some(rest)


def _job_id(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{text!r} is neither a job (12) nor a run (r12)")
    return int(text)


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:_FEW]))
    return shown if len(ids) <= _FEW else f"{shown} and {len(ids) - _FEW:,} more"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
