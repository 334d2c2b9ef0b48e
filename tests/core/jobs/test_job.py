"""What may be asked of a job, checked before it is stored."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from tidemill.core.codec import decode, encode
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import JobOptions, NewJob, Origin, check_name
from tidemill.core.retry import retry

names = st.text(st.characters(categories=("L", "N", "P")), min_size=1, max_size=200)


def new_job(**changes: Any) -> NewJob:
    return NewJob(**{"queue": "mail", "task": "send", "args": msgspec.Raw(b"{}"), **changes})


@given(names)
def test_any_printable_name_is_a_queue(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize("name", ["", " mail", "mail ", "a\nb", "a\x00b", "a\tb", "x" * 201])
def test_a_name_that_people_could_not_read_or_type_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a queue name"):
        check_name("queue", name)
    with pytest.raises(ConfigError, match="is not a queue name"):
        new_job(queue=name).validate()
    with pytest.raises(ConfigError, match="is not a task name"):
        new_job(task=name).validate()


@pytest.mark.parametrize("priority", range(10))
def test_priorities_go_from_0_to_9(priority: int) -> None:
    assert new_job(priority=priority).validate().priority == priority


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"priority": 10}, "priority 10 is outside 0 to 9"),
        ({"priority": -1}, "priority -1 is outside 0 to 9"),
        ({"delay": 5.0, "at": 1.0}, "either delay= or at="),
        ({"unique_for": 60.0}, "unique_for= needs a unique_key="),
        ({"concurrency_key": "k", "max_concurrency": 0}, "would never let a job run"),
    ],
)
def test_options_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        new_job(**changes).validate()


def test_only_jobs_with_keys_look_at_other_jobs() -> None:
    assert not new_job().keyed
    assert new_job(unique_key="a").keyed
    assert new_job(concurrency_key="a").keyed


def test_a_job_is_stored_with_nothing_but_what_is_special_about_it() -> None:
    assert decode(encode(new_job())) == {"queue": "mail", "task": "send", "args": {}}


def test_a_job_survives_being_stored_as_json() -> None:
    job = new_job(
        priority=9,
        delay=1.5,
        deadline=99.0,
        unique_key="k",
        unique_for=60.0,
        concurrency_key="c",
        max_concurrency=3,
        tags=("a", "b"),
        options=JobOptions(retry=retry(3), budget=5.0, isolation="process"),
        origin=Origin(by="app shop", host="h", pid=7, parent=3),
    )
    assert decode(encode(job), NewJob) == job


@pytest.mark.parametrize("what", ["unique_key", "concurrency_key"])
@pytest.mark.parametrize("key", [7, b"order 7", "a\x00b", "half \ud800", "x" * 1801])
def test_a_key_that_could_not_be_looked_up_is_refused_at_once(what: str, key: Any) -> None:
    """A number would be stored, and then not be found when the same key comes again."""
    with pytest.raises(ConfigError, match=f"{what}=.* is not a valid key: use a string of at most 1800 bytes"):
        new_job(**{what: key}).validate()
    assert new_job(**{what: "x" * 1800}).validate()
