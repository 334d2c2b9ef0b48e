"""Cases for the operations on streams and dead letters."""

from __future__ import annotations

from datetime import datetime
from uuid import uuid4

from tests.invariants.operations.case import Case, World
from tidemill.ops.streams import dead_letters, streams
from tidemill.store.streams import streams as streams_store

DISPATCHER = {
    "mode": "run", "in_flight": 0, "max_concurrency": 9, "engines": 1, "restarts": 0, "plans": {}, "sinks": [],
    "live": {"open": 0, "done": 0, "shed": 0},
    "sources": [
        {
            "name": name, "enabled": True, "weight": 1, "max_qps": None, "rate": 0, "lag": 3, "in_flight": 0, "done": 7,
            "retried": 0, "dead": 1, "expired": 0, "duplicates": 0, "error": None,
        }
        for name in ("web", "shop")
    ],
}  # fmt: skip


async def a_stream(world: World) -> None:
    """A dispatcher runs stream `posts`, which has two dead letters."""
    await streams_store.report_status(world.database, uuid4(), "posts", "alpha", 17, DISPATCHER)
    await world.database.fetch(
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, plans, payload) "
        "SELECT 'posts', 'web', 'p' || n, 'failed', 3, '2026-01-02Z', 'Rank: too long', '{Rank}', '{}' "
        "FROM generate_series(1, 2) AS n"
    )


CASES: dict[str, Case] = {
    "list_streams": Case(streams.ListStreams(name="posts"), a_stream, command="stream status posts --json", items=True),
    "control_stream": Case(
        streams.ControlStream(name="posts", source="web", weight=4.0),
        a_stream,
        (
            streams.ControlStream(name="nothing", mode="drain"),
            streams.ControlStream(name="posts"),
            streams.ControlStream(name="posts", enabled=False),
            streams.ControlStream(name="posts", source="post", enabled=False),
            streams.ControlStream(name="posts", source="web", weight=0.0),
            streams.ControlStream(name="posts", source="web", max_qps=-1.0),
            streams.ControlStream(name="posts", mode="stop"),  # pyright: ignore[reportArgumentType] - it is wrong
        ),
        command="stream set-weight posts web 4",
    ),
    "publish_messages": Case(
        streams.PublishMessages(topic="orders", messages=["one", "two"], key="k"),
        wrong=(streams.PublishMessages(topic="orders", messages=[]),),
        command="stream publish orders one two --key k",
    ),
    "list_dead_letters": Case(
        dead_letters.ListDeadLetters(stream="posts", plan="Rank"),
        a_stream,
        (
            dead_letters.ListDeadLetters(limit=0),
            dead_letters.ListDeadLetters(id=(0,)),
            dead_letters.ListDeadLetters(cursor="?"),
            dead_letters.ListDeadLetters(since=datetime(2026, 1, 2)),
            dead_letters.ListDeadLetters(why="bad"),  # pyright: ignore[reportArgumentType] - it is wrong
        ),
        command="stream dead-letters posts --plan Rank --json",
        items=True,
    ),
    "get_dead_letter": Case(
        dead_letters.GetDeadLetter(id=2),
        a_stream,
        (dead_letters.GetDeadLetter(id=99), dead_letters.GetDeadLetter(id=-1)),
    ),
    "preview_replay_dead_letters": Case(
        dead_letters.ReplayDeadLetters(stream="posts"),
        a_stream,
        (dead_letters.ReplayDeadLetters(stream=None, ids=[0]),),
    ),
    "replay_dead_letters": Case(
        dead_letters.ReplayDeadLetters(stream="posts", error="TOO"),
        a_stream,
        (dead_letters.ReplayDeadLetters(stream=None, ids=[0]),),
        command="stream replay posts --error TOO",
    ),
}
