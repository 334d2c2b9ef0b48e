"""A follower of a durable run sees the events of a run in memory, internal ones too, and resumes from any of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.durable import running_run_worker
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step
from tidemill.flows.definition.events import InternalDispatchEvent
from tidemill.flows.definition.retry_policy import retry_policy, stop_after_attempt, wait_fixed
from tidemill.flows.runner import follow
from tidemill.store.database import Database
from tidemill.store.runs.describe import describe_published


class Draft(Event):
    text: str


class Question(InputRequiredEvent):
    text: str


class Verdict(HumanResponseEvent):
    text: str


class Stray(Event):
    """No step takes it."""


class Progress(Event):
    done: int


class Checked(Event):
    text: str


class Review(Workflow):
    """One step after the other, so that the order of all events is given."""

    @step
    async def write(self, ctx: Context, ev: StartEvent) -> Draft:
        ctx.write_event_to_stream(Progress(done=1))
        await ctx.store.set("topic", ev.topic)
        ctx.write_event_to_stream(Progress(done=2))
        return Draft(text=ev.topic)

    @step
    async def ask(self, ctx: Context, ev: Draft) -> Checked:
        verdict = await ctx.wait_for_event(Verdict, waiter_event=Question(text=ev.text))
        ctx.write_event_to_stream(Progress(done=3))
        return Checked(text=verdict.text)

    @step(retry_policy=retry_policy(wait=wait_fixed(0), stop=stop_after_attempt(3)))
    async def finish(self, ctx: Context, ev: Checked) -> StopEvent:
        if ctx.retry_info().retry_number == 0:
            raise RuntimeError("not the first time")
        return StopEvent(result=f"{await ctx.store.get('topic')}: {ev.text}")


class Rounds(Workflow):
    """Continues as new a few times, then waits."""

    @step
    async def go_round(self, ctx: Context, ev: StartEvent) -> StopEvent:
        ctx.write_event_to_stream(Progress(done=ev.left))
        if ev.left:
            return ctx.continue_as_new(left=ev.left - 1)
        return StopEvent(result=(await ctx.wait_for_event(Verdict, waiter_event=Question(text="?"))).text)


async def in_memory() -> list[Any]:
    handler = Review(timeout=None).run(topic="tides")
    events: list[Any] = []
    async for event in handler.stream_events(expose_internal=True):
        events.append(event)
        if isinstance(event, Question):
            await handler.send_event(Stray())
            await handler.send_event(Verdict(text="good"))
    assert await handler == "tides: good"
    return events


async def on_postgresql(app: App, database: Database) -> tuple[Any, list[tuple[int, Any]]]:
    """Follow a run whose person answers when it has left memory."""
    run = await app.start(Review, topic="tides")
    events: list[tuple[int, Any]] = []
    async for number, event in run.stream_events(expose_internal=True, numbered=True):
        events.append((number, event))
        if isinstance(event, Question):
            await eventually(lambda: value(database, "SELECT NOT awake FROM tidemill.run WHERE id = $1", run.id))
            await run.send_event(Stray())
            await run.send_event(Verdict(text="good"))
    assert await run == "tides: good"
    return run, events


def told(event: Any) -> str:
    return f"{type(event).__name__} {event!r}"


async def test_a_follower_of_a_durable_run_sees_the_events_of_a_run_in_memory_in_the_same_order(
    app: App, database: Database
) -> None:
    app.workflow(Review, timeout=None)
    async with running_run_worker(app):
        _, events = await on_postgresql(app, database)
    names = [type(event).__name__ for _, event in events]
    assert [told(event) for _, event in events] == [told(event) for event in await in_memory()]
    assert {"StepStateChanged", "WorkflowIdleEvent", "UnhandledEvent", "Progress", "Question", "StopEvent"} == set(
        names
    )


async def test_a_follower_resumes_in_a_database_that_has_many_published_events(app: App, database: Database) -> None:
    await database.fetch("SELECT setval(pg_get_serial_sequence('tidemill.published', 'seq'), 5000000000)")
    app.workflow(Review, timeout=None)
    async with running_run_worker(app):
        run, _ = await on_postgresql(app, database)
    events = [each async for each in run.stream_events(numbered=True)]
    assert [each async for each in run.stream_events(after=events[1][0], numbered=True)] == events[2:]
    shown = await describe_published(database, run.id, after=events[1][0], limit=10)
    assert [each["number"] for each in shown] == [number for number, _ in events[2:]]


async def test_a_stream_resumes_after_every_event_with_internal_events_and_without(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "TICKS_AT_ONCE", 2)
    monkeypatch.setattr(follow, "EVENTS_AT_ONCE", 1)
    app.workflow(Review, timeout=None)
    async with running_run_worker(app):
        run, events = await on_postgresql(app, database)
    numbers = [number for number, _ in events]
    assert numbers == sorted(set(numbers))
    later = await app.runs.get(run.id)
    for place, number in enumerate([0, *numbers]):
        rest = [each async for each in later.stream_events(expose_internal=True, after=number, numbered=True)]
        assert [(n, told(e)) for n, e in rest] == [(n, told(e)) for n, e in events[place:]]
        public = [each async for each in later.stream_events(after=number, numbered=True)]
        expected = [each for each in events[place:] if not isinstance(each[1], InternalDispatchEvent)]
        assert [(n, told(e)) for n, e in public] == [(n, told(e)) for n, e in expected]


async def test_internal_events_of_a_run_are_not_stored(app: App, database: Database) -> None:
    app.workflow(Review, timeout=None)
    async with running_run_worker(app):
        run, _ = await on_postgresql(app, database)
    rows = await database.fetch("SELECT data FROM tidemill.published WHERE run_id = $1", run.id)
    assert len(rows) == 5
    assert not any(b"StepState" in row["data"] or b"Idle" in row["data"] for row in rows)


async def test_a_late_follower_of_a_run_that_continued_as_new_begins_with_its_last_snapshot(app: App) -> None:
    app.workflow(Rounds, timeout=None)
    async with running_run_worker(app):
        run = await app.start(Rounds, left=30)
        seen: list[Any] = []
        async for event in run.stream_events(expose_internal=True):
            seen.append(event)
            if isinstance(event, Question):
                await run.send_event(Verdict(text="enough"))
        assert await run == "enough"
    shown = [event.done for event in seen if isinstance(event, Progress)]
    assert shown == list(range(30, -1, -1)), "published events are all there"
    late = [event async for event in run.stream_events(expose_internal=True)]
    assert [event.done for event in late if isinstance(event, Progress)] == shown
    assert told(late[-2]) == told(seen[-2])
    assert [type(event).__name__ for event in late][-2:] == ["StepStateChanged", "StopEvent"]


async def test_a_process_without_the_workflow_says_what_it_needs_for_internal_events(
    app: App, database: Database, database_url: str
) -> None:
    app.workflow(Review, timeout=None)
    run = await app.start(Review, topic="tides")
    async with App("test", database_url=database_url) as other:
        with pytest.raises(ConfigError, match="there is no workflow or dag 'Review'"):
            _ = [each async for each in (await other.runs.get(run.id)).stream_events(expose_internal=True)]
