"""The options that a caller may give for a job besides its arguments, and the fields that they set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, TypedDict

from tidemill.core.codec import check_storable
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.engine.jobs.task import Task
from tidemill.engine.jobs.webhook import webhook_callback


class ManyOptions(TypedDict, total=False):
    """The options of `enqueue_many`, for all of its jobs alike. None is the same as leaving an option out."""

    delay: Duration | None
    """Not before this long from now on."""
    at: datetime | float | None
    """Not before this moment: a datetime with its time zone, or seconds since 1970."""
    priority: int | None
    """0 to 9; 9 goes first."""
    queue: str | None
    """Another queue than the task's own."""
    deadline: Duration | datetime | None
    """Dropped unrun after this long, or at this moment."""
    tags: Iterable[str] | None
    """Words to find it by."""
    required_model: str | None
    """Another model than the task's own."""
    webhook: str | None
    """The address to which its outcome is posted, signed, when it has ended."""
    unique_key: str | None
    """No second unfinished job of this task with this key; `{argument}` is filled in, as in all keys."""
    unique_for: Duration | None
    """How long the key is held, also after the job has ended."""
    fair_key: str | None
    """Keys share their queue: a job does not wait for all jobs of another key that came before it."""
    rate_key: str | None
    """Jobs that share this key start at most at the rate that their task or queue declares."""
    concurrency_key: str | None
    """Jobs that share this key run at most `max_concurrency` at a time."""
    max_concurrency: int | None


class EnqueueOptions(ManyOptions, total=False):
    """The options of `enqueue`."""

    debounce: Duration | None
    """Run this long after the last call with this unique key, with its arguments."""


#: The moments that PostgreSQL and Python both know: the first and the last second of the years 1 to 9999.
EARLIEST, LATEST = -62_135_596_800, 253_402_300_799

OPTIONS_FOR_MANY = frozenset(ManyOptions.__annotations__)
OPTIONS = frozenset(EnqueueOptions.__annotations__)


def read_options(given: Mapping[str, Any], task: Task[Any, Any, Any]) -> dict[str, Any]:
    """The fields of a new job that the caller's options set; a `ConfigError` names an invalid option."""
    fields: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in ("delay", "unique_for", "debounce"):
            fields[name] = parse_duration(value, what=name)
        elif name == "deadline" and not isinstance(value, datetime):
            fields["deadline_in"] = parse_duration(value, what=name)
        elif name in ("at", "deadline"):
            fields[name] = read_moment(name, value)
        elif name == "webhook":
            fields[name] = webhook_callback(value)
        elif name == "tags":
            fields[name] = (*task.options.tags, *read_words(value))
        elif name == "max_concurrency":
            fields[name] = _read_limit(value, given, task)
        else:
            fields[name] = value
    return fields


def read_moment(what: str, value: Any) -> float:
    """A moment as seconds since 1970, from a datetime with its time zone or from seconds."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ConfigError(f"{what}={value} has no time zone: add one, so that it means one moment")
        seconds = value.timestamp()
    elif isinstance(value, int | float) and not isinstance(value, bool):
        seconds = value
    else:
        raise ConfigError(f"{what}={value!r:.100} is neither a datetime nor seconds since 1970")
    if EARLIEST <= seconds <= LATEST:
        return float(seconds)
    raise ConfigError(f"{what}={value!s:.100} is not within the years 1 to 9999, in UTC; leave it out for none")


def read_words(value: Any) -> tuple[str, ...]:
    """Tags, from anything that lists them."""
    if isinstance(value, str):
        raise ConfigError(f"tags={value!r} is one string; write a list, such as [{value!r}]")
    if not isinstance(value, Iterable):
        raise ConfigError(f"tags={value!r:.100} are not tags: write a list of words, such as ['nightly']")
    return tuple(_read_word(word) for word in value)


def _read_word(word: Any) -> str:
    if not isinstance(word, str):
        raise ConfigError(f"tag {word!r:.100} is not text, such as 'nightly'")
    return check_storable("tag", word)


def _read_limit(value: Any, given: Mapping[str, Any], task: Task[Any, Any, Any]) -> int:
    if given.get("concurrency_key") is None and task.options.concurrency_key is None:
        raise ConfigError("max_concurrency= needs a concurrency_key=: it limits the jobs that share the key")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ConfigError(f"max_concurrency={value!r:.100} would never let a job run; use a whole number of 1 or more")
    return value
