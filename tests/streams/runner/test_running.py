"""Streams on a real database: retries, dead letters, replay, control, hand-over, drain."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

import pytest

from tests.support import eventually, locked_out, value
from tests.support.operate import list_audit
from tests.support.operate_streams import control_stream, replay_dead
from tests.support.streams import all_read, publish, running_dispatcher, running_stream
from tidemill.core.retry import retry
from tidemill.sources import HttpSource, JsonlSource, LogSource
from tidemill.sources.base import SourceContext
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.streams import streams as store
from tidemill.store.streams.dead_letters import DeadFilter, list_dead
from tidemill.streams import Filtered, Plan, Stream, task
from tidemill.streams.runner.live_requests import InvalidError, LateError, SaturatedError

QUICK = retry(3, backoff=0.02, jitter=0.0)
SLOW = retry(3, backoff=3600, jitter=0.0)


class Recording(Plan, eligibility="record"):
    """Notes what it is given; does what the message says."""

    seen: list[tuple[Any, int]]
    gate: asyncio.Event

    @task
    async def record(self, ctx: Any) -> Any:
        Recording.seen.append((ctx.value, ctx.message.attempt))
        said = ctx.value if isinstance(ctx.value, dict) else {}
        if said.get("fail", 0) >= ctx.message.attempt:
            raise ValueError(f"attempt {ctx.message.attempt} is too early")
        if said.get("wait"):
            await Recording.gate.wait()
        if said.get("filter"):
            raise Filtered("not for us")
        return ctx.value


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Recording.seen = []
    Recording.gate = asyncio.Event()


def stream_of(*sources: Any, **options: Any) -> Stream:
    declared = sources or (LogSource("posts", eligibilities=frozenset({"record"})),)
    return Stream("s", plans=[Recording], sources=declared, **{"engines": 0, "retry": QUICK, **options})


async def test_messages_of_the_log_are_worked_on_once_and_acked(database: Database, database_url: str) -> None:
    await publish(database, "posts", range(50))
    async with running_stream(stream_of(), database_url):
        await publish(database, "posts", range(50, 5000))
        await all_read(database, "posts")
    assert sorted(number for number, _ in Recording.seen) == list(range(5000))
    async with running_stream(stream_of(), database_url):
        await publish(database, "posts", ["last"])
        await eventually(lambda: len(Recording.seen) == 5001)
    assert Recording.seen[-1] == ("last", 1), "what was acked is not delivered again"


class Counting(Database):
    """Counts how often a dispatcher reads what operators have set."""

    reads = 0

    async def fetch(self, statement: str, *args: Any, patience: float | None = 30.0) -> list[Any]:
        self.reads += statement == store.READ_CONTROL
        return await super().fetch(statement, *args, patience=patience)


async def test_a_stream_that_is_called_like_its_topic_reads_its_settings_when_they_change_only(
    database: Database, database_url: str
) -> None:
    counting = Counting(DatabaseSettings(url=database_url))
    async with (
        counting,
        running_dispatcher(stream_of(LogSource("s", eligibilities=frozenset({"record"}))), counting),
    ):
        before = counting.reads
        for number in range(20):
            await publish(database, "s", [number])
            await eventually(lambda number=number: len(Recording.seen) > number)
        assert counting.reads - before < 10, "two or three times, because they are read every few seconds"


class Deaf(JsonlSource, frozen=True, tag="deaf"):
    """Waits as clients of brokers do, which on Python 3.11 may overhear a cancellation: this one always does."""

    def consumer(self, context: Any) -> Any:
        consumer = super().consumer(context)
        poll, overheard = consumer.poll, []

        async def poll_deafly(most: int) -> Any:
            try:
                return await poll(most)
            except asyncio.CancelledError:
                if overheard:
                    raise
                overheard.append(most)
                return []

        consumer.poll = poll_deafly  # pyright: ignore[reportAttributeAccessIssue]
        return consumer


async def test_a_source_whose_client_overhears_that_it_is_to_end_does_not_keep_the_stream(
    tmp_path: Path, database_url: str
) -> None:
    (tmp_path / "in.jsonl").write_text('"one"\n')
    source = Deaf(str(tmp_path / "in.jsonl"), eligibilities=frozenset({"record"}))
    async with asyncio.timeout(120), running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Recording.seen) == 1)
    assert Recording.seen == [("one", 1)]


async def test_a_transaction_that_commits_late_loses_nothing(database: Database, database_url: str) -> None:
    """Ids are drawn in one order and committed in another: a plain id cursor would jump over the early one."""
    async with running_stream(stream_of(), database_url) as dispatcher, database.transaction() as early:
        await early.execute(
            "INSERT INTO tidemill.event_log (topic, payloads) VALUES ('posts', ARRAY['\"early\"'::bytea])"
        )
        await publish(database, "posts", ["late"])
        assert await dispatcher.consumers[0].poll(10) == [], "nothing younger than an open transaction is taken"
        assert Recording.seen == []
        await early.execute("COMMIT")
        await early.execute("BEGIN")
        await publish(database, "posts", ["wake up"])
        await eventually(lambda: len(Recording.seen) == 3)
    assert [word for word, _ in Recording.seen] == ["early", "late", "wake up"]


async def test_groups_see_everything_each(database: Database, database_url: str) -> None:
    await publish(database, "posts", range(20))
    eligible = frozenset({"record"})
    both = [LogSource("posts", name=name, group=name, eligibilities=eligible) for name in ("one", "two")]
    async with running_stream(stream_of(*both), database_url) as dispatcher:
        await eventually(lambda: len(Recording.seen) == 40)
        await eventually(lambda: [counts.done for counts in dispatcher.reducer.counts] == [20, 20])


async def test_a_failed_message_is_tried_again_and_succeeds(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(), database_url) as dispatcher:
        await publish(database, "posts", [{"fail": 2}])
        await eventually(lambda: len(Recording.seen) == 3)
        await eventually(lambda: dispatcher.reducer.counts[0].done == 1)
        await eventually(lambda: is_zero(database, "stream_retry"))
    assert [attempt for _, attempt in Recording.seen] == [1, 2, 3]
    assert await value(database, "SELECT count(*) FROM tidemill.dead_letter") == 0


async def test_attempts_and_waits_survive_a_restart(database: Database, database_url: str) -> None:
    due = "SELECT due_at FROM tidemill.stream_retry WHERE attempts = 2"
    async with running_stream(stream_of(retry=SLOW), database_url):
        await publish(database, "posts", [{"fail": 9}])
        waits_until = await eventually(lambda: value(database, due))
    Recording.seen.clear()
    async with running_stream(stream_of(retry=SLOW), database_url):
        await publish(database, "posts", ["another"])
        await eventually(lambda: Recording.seen == [("another", 1)])
        assert await value(database, due) == waits_until
    Recording.seen.clear()
    await database.fetch("UPDATE tidemill.stream_retry SET due_at = now()")
    async with running_stream(stream_of(), database_url):
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.dead_letter"))
    assert [attempt for _, attempt in Recording.seen] == [2, 3]


async def test_attempts_of_an_ordered_source_survive_a_restart(database: Database, database_url: str) -> None:
    """The message stays with its source, for others of its key wait behind it; how often it was tried does not."""
    ordered = LogSource("posts", eligibilities=frozenset({"record"}), ordered=True)
    async with running_stream(stream_of(ordered, retry=SLOW, drain="100ms"), database_url) as dispatcher:
        await publish(database, "posts", [{"fail": 9}, {"behind": True}], key="a")
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.stream_attempt WHERE attempts = 2"))
        await eventually(lambda: dispatcher.reducer.busy == 0)
    assert [attempt for _, attempt in Recording.seen] == [1]
    Recording.seen.clear()
    await database.fetch("UPDATE tidemill.stream_attempt SET due_at = now()")
    async with running_stream(stream_of(ordered), database_url):
        await all_read(database, "posts")
        await eventually(lambda: is_zero(database, "stream_attempt"))
    assert [attempt for _, attempt in Recording.seen] == [2, 3, 1]
    assert Recording.seen[-1][0] == {"behind": True}, "its turn came when the first was given up"
    assert await value(database, "SELECT attempts FROM tidemill.dead_letter") == 3


async def test_a_dead_letter_tells_everything_and_can_be_replayed(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(), database_url) as dispatcher:
        await publish(database, "posts", [{"fail": 3, "id": 1}], key="k", headers=b'{"h": "v"}')
        await eventually(lambda: value(database, "SELECT count(*) FROM tidemill.dead_letter"))
        (row,) = await list_dead(database, DeadFilter(stream="s"))
        assert (row["source"], row["why"], row["attempts"], row["plans"]) == ("posts", "failed", 3, ["Recording"])
        assert row["error"] == "Recording: ValueError: attempt 3 is too early (all 3 attempts failed)"
        assert (row["kind"], row["key"], json.loads(row["headers"])) == ("ValueError", b"k", {"h": "v"})
        assert json.loads(row["payload"]) == {"fail": 3, "id": 1}
        await eventually(lambda: dispatcher.reducer.counts[0].dead == 1)
        assert await replay_dead(database, DeadFilter(error="no such words")) == 0
        Recording.seen.clear()
        await database.fetch("UPDATE tidemill.dead_letter SET payload = '{\"fail\": 1}'")
        which = DeadFilter(stream="s", plan="Recording", why="failed")
        assert await replay_dead(database, which, by="ann") == 1
        entry, first = await list_audit(database)
        assert (first["who"], first["action"], first["target"]) == ("test", "stream.replay", "*")
        assert (entry["who"], entry["action"], entry["target"]) == ("ann", "stream.replay", "s")
        assert json.loads(entry["after"]) == {"count": 1, "stream": "s", "plan": "Recording", "why": "failed"}
        await eventually(lambda: len(Recording.seen) == 2)
        await eventually(lambda: is_zero(database, "stream_retry"))
    assert await value(database, "SELECT count(*) FROM tidemill.dead_letter") == 0


async def test_an_undecodable_message_is_kept_with_its_bytes(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(), database_url):
        await publish(database, "posts", [1, b"\x00\xff{", 2])
        await all_read(database, "posts")
    assert sorted(number for number, _ in Recording.seen) == [1, 2]
    (row,) = await list_dead(database, DeadFilter(why="undecodable"))
    assert row["payload"] == b"\x00\xff{"
    assert row["attempts"] == 1


async def test_expired_and_eligible_for_nothing_are_acked_and_counted(database: Database, database_url: str) -> None:
    old = LogSource("old", eligibilities=frozenset({"record"}), max_age="1s")
    none = LogSource("none")
    await publish(database, "old", ["stale"])
    await database.fetch("UPDATE tidemill.event_log SET at = now() - interval '1 minute' WHERE topic = 'old'")
    await publish(database, "none", range(5))
    async with running_stream(stream_of(old, none), database_url) as dispatcher:
        await all_read(database, "old")
        await all_read(database, "none")
        await eventually(lambda: dispatcher.reducer.counts[0].expired == 1)
        await eventually(lambda: dispatcher.reducer.counts[1].done == 5)
    assert Recording.seen == []


async def test_a_message_id_within_the_window_is_done_once(database: Database, database_url: str) -> None:
    source = LogSource("posts", eligibilities=frozenset({"record"}), message_id="key")
    async with running_stream(stream_of(source), database_url) as dispatcher:
        await publish(database, "posts", [{"fail": 1}], key="a")
        await eventually(lambda: dispatcher.reducer.counts[0].done == 1)
        await publish(database, "posts", [{"again": True}], key="a")
        await eventually(lambda: dispatcher.reducer.counts[0].duplicates == 1)
    assert [attempt for _, attempt in Recording.seen] == [1, 2], "the failed attempt was no reason to skip the second"


async def test_lines_of_a_file_are_read_on_from_where_they_were_left(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    file = tmp_path / "posts.jsonl"
    file.write_text("".join(f"{number}\n" for number in range(100)))
    source = JsonlSource(str(file), eligibilities=frozenset({"record"}))
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Recording.seen) == 100)
    with file.open("a") as more:
        more.write("100\n101\n10")
    async with running_stream(stream_of(source), database_url):
        await eventually(lambda: len(Recording.seen) == 102)
        with file.open("a") as more:
            more.write("2\n")
        await eventually(lambda: len(Recording.seen) == 103)
    assert [number for number, _ in Recording.seen] == list(range(103))
    assert await value(database, "SELECT position FROM tidemill.source_cursor") == file.stat().st_size


@contextmanager
def pages_of(items: list[int], asked: list[int]) -> Iterator[HttpSource]:
    """An API that gives items by pages, and notes where it was asked to begin."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
            asked.append(start)
            page = items[start : start + limit]
            body = json.dumps({"items": page, "cursor": str(start + len(page))}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield HttpSource(
            f"http://127.0.0.1:{server.server_port}/posts", page=10, poll=(0.02, 0.1), eligibilities={"record"}
        )
    finally:
        server.shutdown()
        server.server_close()


async def test_pages_of_an_api_are_read_on_from_where_they_were_left(database_url: str, database: Database) -> None:
    items, asked = list(range(25)), list[int]()
    with pages_of(items, asked) as source:
        async with running_stream(stream_of(source), database_url):
            await eventually(lambda: len(Recording.seen) == 25)
        items += [25, 26]
        asked.clear()
        async with running_stream(stream_of(source), database_url):
            await eventually(lambda: len(Recording.seen) == 27)
        assert asked[0] == 25, "it begins after the last page that was done"
    assert [number for number, _ in Recording.seen] == list(range(27))


async def test_a_page_whose_flush_was_cancelled_is_not_read_again(database: Database) -> None:
    """A dispatcher that ends cancels its flushes, and says its last words after that."""
    with pages_of(list(range(10)), []) as source:
        consumer = source.consumer(SourceContext("s", uuid4(), database))
        await consumer.start()
        consumer.ack(await consumer.poll(10))
        async with database.transaction() as other:
            await other.execute("SELECT FROM tidemill.source_cursor FOR UPDATE")
            flushing = asyncio.create_task(consumer.flush())
            await eventually(lambda: locked_out(database, "%source_cursor%"))
            flushing.cancel()
            await asyncio.wait([flushing])
        await consumer.stop()
    assert await value(database, "SELECT position FROM tidemill.source_cursor") == 10


async def test_operators_change_weight_limit_and_switch_while_it_runs(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(), database_url) as dispatcher:
        await control_stream(database, "s", "posts", weight=7.0, max_qps=50.0, by="test")
        limits = dispatcher.reducer.limits[0]
        await eventually(lambda: (limits.weight, limits.max_qps, limits.enabled) == (7.0, 50.0, True))
        await control_stream(database, "s", "posts", enabled=False, max_qps=0, by="test")
        await eventually(lambda: (limits.weight, limits.max_qps, limits.enabled) == (7.0, None, False))
        await publish(database, "posts", [1])
        await eventually(lambda: dispatcher.reducer.waiting(0) == 1)
        assert dispatcher.reducer.counts[0].sent == 0
        await control_stream(database, "s", "posts", enabled=True, by="test")
        await eventually(lambda: Recording.seen == [(1, 1)])
        await control_stream(database, "s", mode="drain", by="test")
        await eventually(lambda: dispatcher.control.mode == "drain")
        await publish(database, "posts", [2])
        await eventually(lambda: dispatcher.reducer.waiting(0) == 1)
        assert dispatcher.reducer.counts[0].sent == 1
        await control_stream(database, "s", mode="run", by="test")
        await eventually(lambda: len(Recording.seen) == 2)
    assert await value(database, "SELECT count(*) FROM tidemill.audit WHERE action = 'stream.control'") == 5
    rows = await database.fetch("SELECT before, after FROM tidemill.audit ORDER BY id LIMIT 2")
    assert [each and json.loads(each) for each in (rows[0]["before"], rows[1]["before"])] == [
        None,
        {"weight": 7.0, "max_qps": 50.0},
    ]


async def test_the_status_tells_of_sources_and_plans(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(), database_url):
        await publish(database, "posts", [1, {"filter": True}, {"fail": 9}])

        async def told() -> dict[str, Any] | None:
            rows = await store.read_status(database, "s")
            found = json.loads(rows[0]["status"]) if rows else None
            if not found or found["sources"][0]["dead"] != 1 or found["sources"][0]["lag"] is None:
                return None
            return found if found["plans"].get("Recording", {}).get("failed") == 3 else None

        status = await eventually(told)
    source, plan = status["sources"][0], status["plans"]["Recording"]
    assert (source["name"], source["done"], source["retried"], source["failed"]) == ("posts", 2, 2, 3)
    assert (plan["done"], plan["filtered"], plan["failed"]) == (1, 1, 3)
    assert plan["p50"] is not None
    assert plan["sources"]["posts"]["failed"] == 3, "each source has its figures"
    assert await store.read_status(database, "s") == [], "who has ended tells nothing"


async def test_a_drain_ends_as_soon_as_the_work_does_and_hears_every_result(
    database: Database, database_url: str
) -> None:
    await publish(database, "posts", [{"wait": True, "n": number} for number in range(10)])
    async with running_stream(stream_of(drain="60s", max_concurrency=5), database_url) as dispatcher:
        await eventually(lambda: len(Recording.seen) == 5)
        dispatcher.life.stop()
        await eventually(lambda: dispatcher.draining)
        assert dispatcher.reducer.unfinished == 5
        Recording.gate.set()
        began = time.monotonic()
    assert time.monotonic() - began < 50.0, "it waited longer than the work took"
    assert len(Recording.seen) == 5, "it took more while draining"
    async with running_stream(stream_of(), database_url):
        await all_read(database, "posts")
    assert sorted(said["n"] for said, _ in Recording.seen) == list(range(10)), "each was done once"


async def test_a_drain_ends_at_its_limit_and_what_was_under_way_comes_again(
    database: Database, database_url: str
) -> None:
    await publish(database, "posts", [{"wait": True}])
    async with running_stream(stream_of(drain="300ms"), database_url) as dispatcher:
        await eventually(lambda: len(Recording.seen) == 1)
        dispatcher.life.stop()
        began = time.monotonic()
    assert time.monotonic() - began < 50.0
    Recording.gate.set()
    async with running_stream(stream_of(), database_url):
        await all_read(database, "posts")
    assert [attempt for _, attempt in Recording.seen] == [1, 1]


async def test_a_second_signal_ends_at_once(database: Database, database_url: str) -> None:
    await publish(database, "posts", [{"wait": True}])
    async with running_stream(stream_of(drain="60s"), database_url) as dispatcher:
        await eventually(lambda: len(Recording.seen) == 1)
        dispatcher.life.stop()
        await eventually(lambda: dispatcher.draining)
        dispatcher.life.stop()
        began = time.monotonic()
    assert time.monotonic() - began < 50.0


async def test_live_requests_are_answered_with_the_results(database: Database, database_url: str) -> None:
    async with running_stream(stream_of(live=2), database_url) as dispatcher:
        found = await dispatcher.live_requests.ask(b'{"id": 7}', ["record"])
        assert json.loads(found.result) == {"Recording": {"record": {"id": 7}}}
        failed = await dispatcher.live_requests.ask(b'{"fail": 1}', ["record"])
        assert failed.failures == {"Recording": "ValueError: attempt 1 is too early"}
        with pytest.raises(InvalidError, match="no plan has the eligibility 'spam'; known are record"):
            await dispatcher.live_requests.ask(b"1", ["spam"])
        with pytest.raises(InvalidError, match="cannot be read"):
            await dispatcher.live_requests.ask(b"{", ["record"])
        with pytest.raises(LateError):
            await dispatcher.live_requests.ask(b'{"wait": true}', ["record"], timeout=0.05)
        open_ones = [asyncio.create_task(dispatcher.live_requests.ask(b'{"wait": true}', ["record"])) for _ in range(2)]
        await eventually(lambda: dispatcher.live_requests.open == 2)
        with pytest.raises(SaturatedError, match="2 live requests open already"):
            await dispatcher.live_requests.ask(b"1", ["record"])
        Recording.gate.set()
        await asyncio.gather(*open_ones)


async def is_zero(database: Database, table: str) -> bool:
    return await value(database, f"SELECT count(*) = 0 FROM tidemill.{table}")
