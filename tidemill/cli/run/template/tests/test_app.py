"""Tests of the application: the fixture `tidemill` gives each test a database and a clock of its own."""

from app import Approved, Article, Publish, app, count_visits, greet

from tidemill.testing import TestKit


def test_a_greeting_is_sent(tidemill: TestKit) -> None:
    tidemill.use(app)
    app.enqueue_sync(greet.call(name="Ada"))
    tidemill.run_until_idle()
    assert tidemill.enqueued(greet, name="Ada")[0].result == "Hello, Ada!"


def test_visits_are_counted_every_hour(tidemill: TestKit) -> None:
    tidemill.use(app)
    with tidemill.running():
        tidemill.advance("3h")
    assert len(tidemill.enqueued(count_visits)) == 3


async def test_an_article_waits_for_a_person(tidemill: TestKit) -> None:
    tidemill.use(app)
    with tidemill.running():
        run = await app.start(Publish, Article(topic="tides"))
        tidemill.advance("1d")
        await run.send_event(Approved(ok=True))
        assert await run == "published"
