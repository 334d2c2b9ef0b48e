"""Declaring streams, in Python and as configuration: what cannot work is refused at once, in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.core.errors import ConfigError
from tidemill.sources import HttpSource, JsonlSource, LogSource
from tidemill.streams import Batch, Plan, Stream, read_config, task


class Spam(Plan, eligibility="spam"):
    @task
    async def look(self, ctx: object) -> None: ...


class Rank(Plan, eligibility="rank", timeout="2s", max_concurrency=4):
    @task
    async def load(self, ctx: object) -> None: ...

    @task(after="load", batch=Batch(max_size=8, max_wait="2ms"))
    async def score(self, items: list) -> list:
        return [0 for _ in items]


def test_a_plan_knows_its_tasks_and_limits() -> None:
    assert Rank.name == "Rank"
    assert list(Rank.tasks) == ["load", "score"]
    assert (Rank.timeout, Rank.max_concurrency, Rank.tasks["score"].after) == (2.0, 4, ("load",))
    assert Rank.tasks["score"].batch == Batch(8, 0.002)


def test_a_plan_may_build_on_another() -> None:
    class Better(Rank, eligibility="better"):
        @task(after="score")
        async def note(self, ctx: object) -> None: ...

    assert list(Better.tasks) == ["load", "score", "note"]
    assert (Better.eligibility, Better.timeout) == ("better", 2.0)
    assert list(Rank.tasks) == ["load", "score"]


def test_a_plan_that_waits_for_itself_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigError, match=r"in a circle: .*(one -> two|two -> one)"):

        class Circle(Plan, eligibility="x"):
            @task(after="two")
            async def one(self, ctx: object) -> None: ...

            @task(after="one")
            async def two(self, ctx: object) -> None: ...


def test_a_task_after_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="comes after 'lod'; its tasks are load, score"):

        class Slip(Plan, eligibility="x"):
            @task
            async def load(self, ctx: object) -> None: ...

            @task(after="lod")
            async def score(self, ctx: object) -> None: ...


def test_an_eligibility_that_no_plan_has_is_refused_at_the_start() -> None:
    with pytest.raises(
        ConfigError, match="source posts names eligibility 'spm', and no plan has it; known are rank, spam"
    ):
        Stream("s", plans=[Spam, Rank], sources=[LogSource("posts", eligibilities={"spm"})])


def test_an_empty_set_of_eligibilities_is_fine() -> None:
    stream = Stream("s", plans=[Spam], sources=[LogSource("posts")])
    assert stream.sources[0].eligibilities == frozenset()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: LogSource("a", weight=0), "weight of 0"),
        (lambda: LogSource("a", max_qps=-1), "not a rate above zero"),
        (lambda: LogSource("a", eligibilities="spam"), "is one text"),  # pyright: ignore[reportArgumentType]
        (lambda: LogSource("a", message_id="id"), "neither 'key' nor 'header:NAME'"),
        (lambda: LogSource("a", delay="soon"), "not a length of time"),
        (lambda: HttpSource("ftp://x"), "not an http or https address"),
        (lambda: Stream("s", plans=[Spam, Spam], sources=[]), "two plans are called 'Spam'"),
        (
            lambda: Stream("s", plans=[], sources=[LogSource("a"), JsonlSource("a.jsonl")]),
            "two sources or sinks are called 'a'",
        ),
        (lambda: Stream("s", plans=[Spam], sources=[], max_concurrency=0), "max_concurrency: 0 is less than 1"),
        (lambda: Stream("s", plans=[Spam], sources=[], plan_settings={"Spm": {}}), "has no such plan"),
        (lambda: Stream("s", plans=[Spam], sources=[], plan_settings={"Spam": {"rte": 1}}), "rte"),
        (lambda: Stream("s", plans=[object], sources=[]), "is not a plan"),  # pyright: ignore[reportArgumentType]
        (lambda: Batch(max_size=0), "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(make: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        make()  # pyright: ignore[reportCallIssue]


YAML = """
streams:
  posts:
    engines: 2
    max_concurrency: 99
    plans: [tests.streams.definition.test_declaring:Spam, tests.streams.definition.test_declaring:Rank]
    sources:
      - {type: log, topic: unified, weight: 8, max_qps: 500, eligibilities: [spam, rank]}
      - {type: jsonl, path: more.jsonl, name: recovery, eligibilities: [rank], max_age: 1h}
    plan_settings:
      Rank: {rate: 100/s, disabled_for: ["recov*"]}
"""

TOML = """
[streams.posts]
plans = ["tests.streams.definition.test_declaring:Spam"]
[[streams.posts.sources]]
type = "log"
topic = "unified"
eligibilities = ["spam"]
"""


def test_the_same_stream_as_yaml(tmp_path: Path) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text(YAML)
    (stream,) = read_config(file)
    assert (stream.name, stream.engines, stream.max_concurrency) == ("posts", 2, 99)
    assert [plan.__name__ for plan in stream.plans] == ["Spam", "Rank"]
    first, second = stream.sources
    assert (first.name, first.weight, first.max_qps, first.eligibilities) == ("unified", 8, 500.0, {"spam", "rank"})
    assert (second.name, second.max_age) == ("recovery", 3600.0)
    settings = stream.settings_of(stream.plans[1])
    assert settings.rate == 100.0
    assert settings.serves("unified")
    assert not settings.serves("recovery")
    assert stream.declared_in == str(file)


def test_the_same_stream_as_toml(tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text(TOML)
    (stream,) = read_config(file)
    assert [source.name for source in stream.sources] == ["unified"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: [", "cannot be read"),
        ("other: 1", "declares no streams"),
        ("streams: {a: {plans: nothing}}", "plans: must be a list"),
        ("streams: {a: {plans: [json:nothing]}}", "json:nothing cannot be found"),
        ("streams: {a: {plans: [json]}}", "not written as package.module:name"),
        ("streams: {a: {sources: [{topic: x}]}}", "a source needs a type, one of"),
        ("streams: {a: {sources: [{type: log, topic: x, wait: 1}]}}", "has no option 'wait'"),
        ("streams: {a: {enigne: 1}}", "enigne"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_words(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "streams.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=complaint):
        read_config(file)


def test_a_configuration_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no file"):
        read_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("address", ["0.0.0.0:8080", "[::]:8080", "10.0.0.5:8080", "stream.example:8080"])
def test_live_requests_of_other_machines_are_wanted_in_so_many_words(address: str) -> None:
    for way in ("grpc", "http"):
        with pytest.raises(ConfigError, match=r"tokens could be read on the way; .*live_open=True"):
            Stream("s", plans=[Spam], sources=[], **{way: address})  # pyright: ignore[reportArgumentType]
        assert Stream("s", plans=[Spam], sources=[], live_open=True, **{way: address}).live_open  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="stream s: 'here' is not an address"):
        Stream("s", plans=[Spam], sources=[], grpc="here")
    assert Stream("s", plans=[Spam], sources=[], grpc="[::1]:50051", http="localhost:8080").grpc == "[::1]:50051"


def test_a_task_that_cannot_take_a_message_is_refused_when_its_plan_is_defined() -> None:
    with pytest.raises(ConfigError, match=r"plan Wrong: .*Wrong\.go must take \(message\): too many positional"):

        class Wrong(Plan, eligibility="a"):
            @task
            async def go(self) -> None: ...

    class Right(Plan, eligibility="a"):
        @task
        @staticmethod
        def alone(message: object) -> None: ...

        @task(batch=Batch(8, "5ms"))
        async def many(self, items: list) -> None: ...

    assert list(Right.tasks) == ["alone", "many"]
    with pytest.raises(ConfigError, match=r"task go: batch= takes a Batch, such as Batch\(32, '5ms'\), and not 8"):

        class Numbered(Plan, eligibility="a"):
            @task(batch=8)  # pyright: ignore
            async def go(self, items: list) -> None: ...
