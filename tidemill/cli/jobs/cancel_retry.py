"""What operators do to jobs, by id or to all that match: `tidemill retry`, `tidemill cancel`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.cli.confirm import agreed
from tidemill.cli.connection_options import ANYWHERE, Reach, operator
from tidemill.cli.render import out
from tidemill.cli.runs.send_fork import cancel_runs
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.database import Database
from tidemill.store.jobs.operate import cancel_jobs, retry_jobs
from tidemill.store.jobs.pages import JobsWanted, match_jobs

if TYPE_CHECKING:
    from tidemill.cli.client import Remote

MOST_MATCHES = 100_000


class Reached(msgspec.Struct, frozen=True):
    """Which jobs an action has reached, or how many where only that is known."""

    done: list[int] | int
    asked: list[int] | int
    unchanged: list[int] | int


def retry(
    *ids: int,
    state: list[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    yes: bool = False,
    place: Reach = ANYWHERE,
) -> int:
    """Run jobs again: waiting ones now, finished ones as new jobs.

    Parameters
    ----------
    ids
        The jobs; or say with the options which.
    state
        Jobs in this state; say it again for more. Failed ones, if not given.
    queue
        Jobs of this queue.
    task
        Jobs of this task.
    tag
        Jobs with this tag.
    yes
        Do not ask.
    """
    wanted = JobsWanted(tuple(state or ()), queue, task, tag).validate()
    return _operate("retry", ids, wanted, told_retry, yes=yes, place=place)


def cancel(
    *ids: str,
    state: list[str] | None = None,
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    yes: bool = False,
    place: Reach = ANYWHERE,
) -> int:
    """Cancel jobs: waiting ones at once, running ones as soon as their task lets them. Runs of workflows as well.

    Parameters
    ----------
    ids
        The jobs (12) and runs (r12); or say with the options which jobs.
    state
        Jobs in this state; say it again for more.
    queue
        Jobs of this queue.
    task
        Jobs of this task.
    tag
        Jobs with this tag.
    yes
        Do not ask.
    """
    wanted = JobsWanted(tuple(state or ()), queue, task, tag).validate()
    runs = [each for each in ids if each.startswith("r")]
    jobs = tuple(_job_number(each) for each in ids if not each.startswith("r"))
    if runs:
        cancel_runs(runs, place)
    if runs and not jobs and wanted == JobsWanted():
        return 0
    return _operate("cancel", jobs, wanted, told_cancel, yes=yes, place=place)


def told_retry(reached: Reached) -> str:
    """What a retry did, in one line."""
    parts = []
    if reached.asked:
        parts.append(f"enqueued again as {_some(reached.asked)}")
    if reached.done:
        parts.append(f"due now: {_some(reached.done)}")
    return "; ".join(parts) or "nothing to retry: the jobs are running, or their unique keys are taken"


def told_cancel(reached: Reached) -> str:
    """What a cancel did, in one line."""
    parts = []
    if reached.done:
        parts.append(f"cancelled: {_some(reached.done)}")
    if reached.asked:
        parts.append(f"asked to stop: {_some(reached.asked)}")
    if reached.unchanged:
        parts.append(f"had ended or been asked before: {_some(reached.unchanged)}")
    return "; ".join(parts) or "nothing to cancel"


def _operate(
    verb: str, ids: tuple[int, ...], wanted: JobsWanted, told: Callable[[Reached], str], *, yes: bool, place: Reach
) -> int:
    """Do something to named jobs, or to those that match a filter once somebody has agreed to how many."""
    if bool(ids) == (wanted != JobsWanted()):
        raise ConfigError(f"say which jobs to {verb}: either ids, or --queue, --task, --tag, --state")
    if bad := [each for each in ids if not 0 < each < 2**63]:
        raise NotFoundError(f"there is no job {bad[0]}: `tidemill jobs` lists them")
    act = {"retry": retry_jobs, "cancel": cancel_jobs}[verb]

    async def stored(database: Database) -> Reached | int:
        found = list(dict.fromkeys(ids))
        if not found:
            live, ended = wanted.retried if verb == "retry" else (wanted.live, ())
            found = await match_jobs(database, wanted, live=live, ended=ended, limit=MOST_MATCHES)
            if (status := _left_alone(verb, len(found), yes=yes)) is not None:
                return status
        outcome = await act(database, found, by=operator())
        return Reached(outcome.done, outcome.asked, outcome.unchanged)

    def served(server: Remote) -> Reached | int:
        if ids:
            return _reached(server.post("jobs", verb, body={"ids": ids}), ids)
        meant = {"state": wanted.states, "queue": wanted.queue, "task": wanted.task, "tag": wanted.tag}
        found = server.preview("jobs", verb, "preview", body=meant)
        if (status := _left_alone(verb, found["count"], yes=yes)) is not None:
            return status
        return _reached(server.post("jobs", verb, body={"filter": {**meant, "up_to": found["up_to"]}}))

    reached = place.ask(stored, served)
    if isinstance(reached, int):
        return reached
    out().print(told(reached))
    return 0


def _left_alone(verb: str, count: int, *, yes: bool) -> int | None:
    """The exit status if nothing is done: because no job is meant, or somebody does not want it."""
    if not count:
        out().print(f"no job to {verb} matches", style="dim")
        return 0
    return None if yes or agreed(f"{verb} {_jobs(count)}") else 1


def _reached(answer: dict[str, Any], named: tuple[int, ...] = ()) -> Reached:
    """What a server says it has reached: it tells which of those that were named, up to a thousand."""
    first, done = answer["ids"], answer["done"]
    if not named or len(first) < answer["count"]:
        return Reached(done, answer["asked"], answer["unchanged"])
    return Reached(first[:done], first[done:], [each for each in dict.fromkeys(named) if each not in first])


def _job_number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{text!r} is neither a job (12) nor a run (r12)")
    return int(text)


def _some(which: list[int] | int) -> str:
    if isinstance(which, int):
        return _jobs(which)
    shown = ", ".join(map(str, which[:10]))
    return shown if len(which) <= 10 else f"{shown} and {len(which) - 10:,} more"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"
