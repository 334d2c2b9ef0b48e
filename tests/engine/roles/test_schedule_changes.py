"""Schedules are changed at run time: what they start, when, and what they do while the previous one is unfinished."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.roles.test_schedule_overlap import explained, put, shop
from tidemill import App
from tidemill.core.schedule import OVERLAPS, Overlap
from tidemill.testing.kit import TestKit

pytest_plugins = ["tidemill.testing.plugin"]


@pytest.fixture
def app(tidemill: TestKit, tmp_path: Path) -> App:
    return tidemill.use(shop(tmp_path))


@pytest.mark.parametrize(
    ("start", "overlap"),
    [("note", "skip"), ("nightly", "queue"), ("rebuild/blog", "cancel"), ("rebuild/blog", "allow")],
)
def test_other_times_and_another_overlap_hold_from_the_change_on(
    tidemill: TestKit, app: App, start: str, overlap: Overlap
) -> None:
    with tidemill.running():
        put(tidemill, app, start, "allow")
        tidemill.advance("2h")
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.fired == 2)
        put(tidemill, app, start, overlap, every="30m", jitter="1m")
        tidemill.advance("2h")
        tidemill.run_until(lambda: decided(tidemill, app) == 6)
        line = explained(tidemill, app, "s").schedule
    assert line.overlap == overlap
    assert overlap == "skip" or line.overlapped == 0


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize(("before", "after"), [("Slow", "note"), ("note", "Slow"), ("Slow", "nightly")])
def test_what_it_starts_is_changed_while_the_one_before_is_unfinished(
    tidemill: TestKit, app: App, tmp_path: Path, before: str, after: str, overlap: Overlap
) -> None:
    with tidemill.running():
        put(tidemill, app, before, overlap, args={"hold": True} if before == "note" else {})
        pass_an_hour(tidemill)
        tidemill.run_until(lambda: explained(tidemill, app, "s").schedule.fired == 1)
        put(tidemill, app, after, overlap)
        pass_an_hour(tidemill)
        tidemill.run_until(lambda: len(explained(tidemill, app, "s").fires) >= 2)
        told = explained(tidemill, app, "s")
        outcome = {"skip": "skipped", "queue": "waiting"}.get(overlap, "started")
        assert told.fires[0].outcome == outcome, told.fires[0]
        state = "cancelled" if overlap == "cancel" else "running"
        tidemill.run_until(lambda: first_of(tidemill, before) == state)
        (tmp_path / "gate").touch()


def first_of(tidemill: TestKit, name: str) -> str:
    return (tidemill.enqueued(name) if name == "note" else tidemill.started(name))[0].state


def pass_an_hour(tidemill: TestKit) -> None:
    """As `advance`, which would wait for the job that is held."""
    tidemill._bridge.call(tidemill._move(3600.0))


def decided(tidemill: TestKit, app: App) -> int:
    """How many fires have been started or skipped: virtual time may pass faster than what was started before ends."""
    line = explained(tidemill, app, "s").schedule
    return line.fired + line.overlapped
