"""The options that a caller may give for a run besides its arguments, and the fields that they set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_key, check_priority
from tidemill.engine.jobs.enqueue_options import read_moment, read_words
from tidemill.engine.runs.run_rate import filled_key
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.run_turn import NewRun
from tidemill.store.runs.runs import OWN_KEY


class StartOptions(TypedDict, total=False):
    """The options of `start`. None is the same as leaving an option out."""

    unique_key: str | None
    """No second run of this workflow or dag with this key; `{argument}` is filled in, as in all keys."""
    delay: Duration | None
    """Not before this long from now on."""
    at: datetime | float | None
    """Not before this moment: a datetime with its time zone, or seconds since 1970."""
    priority: int | None
    """0 to 9; of the runs that wait to be driven, 9 goes first. Its jobs have it too, unless they have their own."""
    deadline: Duration | datetime | None
    """Dropped unrun if it has not begun after this long, or at this moment."""
    tags: Iterable[str] | None
    """Words to find it by."""
    rate_key: str | None
    """Runs that share this key begin at most at the rate that their workflow or dag declares."""


START_OPTIONS = frozenset(StartOptions.__annotations__)

#: The options of jobs that runs do not have, and what there is instead.
NOT_FOR_RUNS = {
    "queue": "its steps and nodes have queues of their own: @step(queue=...), node(queue=...)",
    "unique_for": "the unique key of a run is taken for as long as the run is kept",
    "debounce": "debounce a task that starts the run",
    "concurrency_key": "limit the runs of a workflow with num_concurrent_runs=, or the tasks of a dag's nodes",
    "max_concurrency": "limit the runs of a workflow with num_concurrent_runs=, or the tasks of a dag's nodes",
    "fair_key": "runs do not wait in queues, the jobs of their nodes and steps do: give it to the tasks of its nodes, "
    "or to the task that starts the run",
    "webhook": "post from a step, or give it to the tasks of its nodes",
    "required_model": "its steps and nodes name the models that they need",
}


def refuse_job_options(given: Iterable[str], fields: Iterable[str] = ()) -> None:
    """Raise a `ConfigError` for options that only jobs have, unless what is started has fields of these names."""
    if wrong := (NOT_FOR_RUNS.keys() & set(given)) - set(fields):
        name = min(wrong)
        raise ConfigError(f"start has no option {name!r}, which jobs have: {NOT_FOR_RUNS[name]}")


def with_start_options(new: NewRun, given: Mapping[str, Any]) -> NewRun:
    """A new run with its options; a `ConfigError` names an invalid one."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if name not in START_OPTIONS:
            hint = did_you_mean(name, START_OPTIONS) or f"; its options are {', '.join(sorted(START_OPTIONS))}"
            raise ConfigError(f"start has no option {name!r}{hint}")
        if value is None:
            continue
        if name == "unique_key":
            fields["key"] = check_run_key(filled_key(name, value, new))
        elif name == "rate_key":
            fields[name] = _check_rate_key(filled_key(name, value, new), new)
        elif name == "delay":
            fields[name] = parse_duration(value, what=name)
        elif name == "deadline" and not isinstance(value, datetime):
            fields["deadline_in"] = parse_duration(value, what=name)
        elif name in ("at", "deadline"):
            fields[name] = read_moment(name, value)
        elif name == "priority":
            fields[name] = check_priority(value)
        else:
            fields[name] = list(read_words(value))
    if "at" in fields and "delay" in fields:
        raise ConfigError("give either delay= or at=, not both")
    return msgspec.structs.replace(new, **fields) if fields else new


def _check_rate_key(key: Any, new: NewRun) -> str:
    if new.key_rate is None:
        call = f"app.dag({new.workflow}, rate='10/m')" if new.kind == DAG_KIND else "app.workflow(..., rate='10/m')"
        raise ConfigError(f"rate_key={key!r:.100}: {new.workflow} declares no rate; declare it with {call}")
    return check_key("rate_key", key)


def read_later(delay: Duration | None, at: datetime | float | None) -> dict[str, float | None]:
    """When something is to arrive: `delay` or `at` as seconds, each None if it is not given."""
    if delay is not None and at is not None:
        raise ConfigError("give either delay= or at=, not both")
    return {
        "delay": None if delay is None else parse_duration(delay, what="delay"),
        "at": None if at is None else read_moment("at", at),
    }


def check_run_key(key: Any) -> str:
    """The unique key of a run; a `ConfigError` if it cannot be one."""
    check_key("unique_key", key)
    if key.startswith(OWN_KEY):
        raise ConfigError(f"unique_key={key!r:.100} begins with {OWN_KEY!r}, which is for Tidemill's own keys")
    return key
