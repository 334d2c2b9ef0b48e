"""What `/metrics` says of streams: the numbers of the messages, each with the stream and the source it comes from."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from structlog.testing import capture_logs

from tests.support import eventually, value
from tests.support.streams import publish, running_stream
from tidemill.cli.streams.view import streams_page
from tidemill.core.codec import decode
from tidemill.core.retry import retry
from tidemill.engine.application.load_app import load_module
from tidemill.engine.telemetry import exposition
from tidemill.engine.telemetry.exposition import Exposition
from tidemill.ops.streams.streams import StreamLine
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.store.streams.streams import read_status
from tidemill.streams import Filtered, Plan, Stream, task
from tidemill.streams.reducer import dedupe


class Checking(Plan, eligibility="check"):
    @task
    async def check(self, ctx: Any) -> None:
        if ctx.value == "bad":
            raise ValueError("bad news")
        if ctx.value == "not ours":
            raise Filtered("not ours")


#: What is told of the source with good and bad messages, of its settings, and of the plan that is given them.
POSTS = {"arrived": 6, "failed": 2, "retried": 1, "dead": 1, "duplicate": 1}
NOW = {"in_flight": 0, "weight": 3, "limit": 50, "enabled": 1}
RUNS = {"done": 3, "filtered": 1, "failed": 2}


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH", 0.0)
    monkeypatch.setattr(exposition, "COST_RATIO", 0.0)


async def scrape(database: Database) -> dict[tuple[str, frozenset[str]], float]:
    """Every sample by its name and the values of its labels but those of the process."""
    text, _ = await Exposition(database).text()
    return {
        (sample.name, frozenset(value for name, value in sample.labels.items() if name not in ("host", "pid"))): (
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name.startswith("tidemill_stream")
    }


COLLECTING = """
from tidemill.sources import LogSource
from tidemill.streams import Plan, Stream, task

class Making(Plan, eligibility="make"):
    @task
    async def make(self, ctx):
        knot = []
        knot.append(knot)

source = LogSource("posts", eligibilities={"make"})
stream = Stream("knots", plans=[Making], sources=[source], engines=1, gc_every="10ms")
"""


async def test_engines_collect_garbage_on_a_period_and_tell_how_long_that_took(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "knots_app.py"
    file.write_text(COLLECTING)
    try:
        stream = load_module(str(file)).stream
        async with running_stream(stream, database_url, target=str(file)) as dispatcher:
            await eventually(lambda: dispatcher.engines.garbage().count >= 2, what="two collections")
            garbage = dispatcher.engines.garbage()
            assert 0 < garbage.longest <= garbage.seconds
            status = "SELECT (status->'garbage'->>'count')::int FROM tidemill.stream_status"
            await eventually(lambda: value(database, status))
    finally:
        sys.modules.pop("knots_app", None)
    told = await scrape(database)
    assert told["tidemill_stream_gc_total", frozenset({"knots"})] >= 2
    assert told["tidemill_stream_gc_seconds_total", frozenset({"knots"})] > 0


async def test_ids_that_are_forgotten_before_their_time_are_reported(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedupe, "MOST_IDS", 5)
    posts = LogSource("posts", eligibilities=frozenset({"check"}), message_id="key")
    plain = LogSource("plain", eligibilities=frozenset({"check"}))
    stream = Stream("s", plans=[Checking], sources=[posts, plain], engines=0, max_concurrency=1)
    known, forgotten = (
        ("tidemill_stream_known_ids", frozenset({"s", "posts"})),
        ("tidemill_stream_forgotten_ids_total", frozenset({"s", "posts"})),
    )
    with capture_logs() as lines:
        async with running_stream(stream, database_url) as dispatcher:
            for number in range(12):
                await publish(database, "posts", ["good"], key=str(number))
            seen: dict[tuple[str, frozenset[str]], float] = {}

            async def all_told() -> bool:
                seen.clear()
                seen.update(await scrape(database))
                return (seen.get(known), seen.get(forgotten)) == (5, 7)

            await eventually(all_told)
            assert ("tidemill_stream_known_ids", frozenset({"s", "plain"})) not in seen, "it has no ids"
            await publish(database, "posts", ["good"], key="0")
            await eventually(lambda: dispatcher.reducer.counts[0].duplicates == 1, what="it is found in the database")
            (row,) = await read_status(database, "s")
            line = StreamLine("s", [{"host": "h", "pid": 1, **decode(row["status"], dict[str, Any])}], 0, 0)
            shown = io.StringIO()
            Console(file=shown, width=200).print(streams_page([line]))
            assert "posts: 5 message ids are remembered here; 7 were forgotten" in shown.getvalue()
    warned = [line for line in lines if "more message ids came" in line["event"]]
    assert [(line["source"], line["log_level"]) for line in warned] == [("posts", "warning")]


async def test_every_number_tells_its_stream_and_its_source(database: Database, database_url: str) -> None:
    eligible = frozenset({"check"})
    sources = [
        LogSource("posts", eligibilities=eligible, weight=3, max_qps=50, message_id="key"),
        LogSource("old", eligibilities=eligible, max_age="1s"),
    ]
    stream = Stream("s", plans=[Checking], sources=sources, engines=0, retry=retry(2, backoff=0.01, jitter=0.0))
    await publish(database, "posts", ["good", "good", "bad", "not ours"])
    await publish(database, "posts", ["twice", "twice"], key="a")
    await publish(database, "old", ["stale"])
    await database.fetch("UPDATE tidemill.event_log SET at = now() - interval '1 minute' WHERE topic = 'old'")

    done = ("tidemill_stream_messages_total", frozenset({"s", "posts", "done"}))
    wanted = {
        done: 4,
        **{("tidemill_stream_messages_total", frozenset({"s", "posts", what})): count for what, count in POSTS.items()},
        ("tidemill_stream_messages_total", frozenset({"s", "old", "arrived"})): 1,
        ("tidemill_stream_messages_total", frozenset({"s", "old", "expired"})): 1,
        **{(f"tidemill_stream_{name}", frozenset({"s", "posts"})): now for name, now in NOW.items()},
        ("tidemill_stream_engines", frozenset({"s"})): 1,
        **{
            ("tidemill_stream_plan_runs_total", frozenset({"s", "Checking", "posts", what})): count
            for what, count in RUNS.items()
        },
        ("tidemill_stream_plan_seconds_count", frozenset({"s", "Checking", "posts"})): 4,
    }
    seen: dict[tuple[str, frozenset[str]], float] = {}

    async def all_told() -> bool:
        seen.clear()
        seen.update(await scrape(database))
        return wanted.items() <= seen.items() and ("tidemill_stream_lag", frozenset({"s", "posts"})) in seen

    async with running_stream(stream, database_url):
        try:
            await eventually(all_told)
        except AssertionError:
            assert {key: seen.get(key) for key in wanted} == wanted
            raise
        assert seen["tidemill_stream_lag", frozenset({"s", "posts"})] >= 0, "it is looked up now and then"
        assert seen["tidemill_stream_plan_seconds_sum", frozenset({"s", "Checking", "posts"})] > 0
    after = await scrape(database)
    assert after[done] == 4, "totals outlive the dispatcher"
    assert not any(name == "tidemill_stream_lag" for name, _ in after), "who has ended tells nothing of now"
