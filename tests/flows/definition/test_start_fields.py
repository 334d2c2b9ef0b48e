"""What a durable run is started with: an event of the right class, or fields that the event declares."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field

from tests.support import value
from tidemill import App
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.flows import StartEvent, StopEvent, Workflow, step
from tidemill.store.database import Database


class Topic(StartEvent):
    topic: str
    fair_key: int = 5
    length: int = Field(default=1, alias="words")


class Other(StartEvent):
    topic: str


class Article(Workflow[Topic, str]):
    @step
    async def write(self, ev: Topic) -> StopEvent:
        return StopEvent(result=ev.topic)


class Bare(Workflow):
    @step
    async def write(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=dict(ev.items()))


@pytest.fixture
def app(app: App) -> App:
    app.workflow(Article)
    app.workflow(Bare)
    return app


@pytest.mark.parametrize(
    ("workflow", "fields", "problem"),
    [
        (Article, {"topik": "x"}, "workflow Article: Topic has no field 'topik'; did you mean 'topic'"),
        (Article, {"topic": "x", "queue": "slow"}, "start has no option 'queue', which jobs have: its steps"),
        (Article, {"topic": "x", "unique_kye": "t"}, "Topic has no field 'unique_kye'; did you mean 'unique_key'"),
        ("Article", {"topik": "x"}, "Topic has no field 'topik'; did you mean 'topic'"),
        (Bare, {"queue": "x"}, "start has no option 'queue', which jobs have: its steps"),
        (Bare, {"unique_kye": "t"}, "start has no option 'unique_kye'; did you mean 'unique_key'"),
        (Bare, {"start_event": StartEvent()}, "start has no option 'start_event'"),
        (Bare, {"dellay": "10m"}, "start has no option 'dellay'; did you mean 'delay'"),
    ],
)
async def test_keywords_that_are_no_fields_are_refused(
    app: App, database: Database, workflow: Any, fields: Any, problem: str
) -> None:
    with pytest.raises((PayloadError, ConfigError), match=problem):
        await app.start(workflow, **fields)
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 0


async def test_fields_that_are_declared_are_taken_whatever_they_are_called(app: App) -> None:
    assert (await app.start(Article, topic="x", fair_key=3, words=8, unique_key="t")).created
    assert not (await app.start(Article, Topic(topic="y"), unique_key="t")).created


async def test_a_plain_start_event_takes_any_field(app: App) -> None:
    async with app.running():
        assert await (await app.start(Bare, colour="red", tag="a", wait=3)) == {"colour": "red", "tag": "a", "wait": 3}
        assert await (await app.start(Bare, StartEvent(delay="10m"))) == {"delay": "10m"}
        assert await (await app.start(Article, Topic(topic="tides"))) == "tides"


async def test_an_event_of_another_class_is_refused(app: App) -> None:
    for wrong in (Other(topic="x"), StartEvent(topic="x"), 5):
        with pytest.raises(PayloadError, match="workflow Article starts with a Topic, and not with "):
            await app.start(Article, wrong)  # pyright: ignore


async def test_an_event_and_fields_together_are_refused(app: App) -> None:
    with pytest.raises(ConfigError, match="start was given the start event and the keyword 'length'"):
        await app.start(Article, Topic(topic="x"), length=3)  # pyright: ignore


async def test_a_name_that_is_not_declared_is_refused_with_those_that_are(app: App) -> None:
    with pytest.raises(ConfigError, match=r"no workflow or dag 'Artikle'; .*: Article, Bare; did you mean 'Article'"):
        await app.start("Artikle", topic="x")
