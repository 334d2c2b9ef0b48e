"""Tests of an application. The fixture `tidemill` comes with the package: `pytest examples/testing`."""

import pytest
from shop import (
    MailServer,
    Order,
    Printer,
    Refund,
    Returned,
    app,
    clean_up,
    fridges,
    place_order,
    print_label,
    reviews,
    send_receipt,
)


@pytest.fixture(autouse=True)
def _database(tidemill):
    tidemill.use(app)


def test_an_order_sends_a_receipt(tidemill):
    place_order(7)
    tidemill.enqueued(send_receipt, order_id=7)
    tidemill.run_until_idle()
    assert tidemill.enqueued(send_receipt, order_id=7)[0].result == "receipt 7"


def test_a_receipt_is_sent_again_after_an_hour(tidemill, monkeypatch):
    with tidemill.running():
        monkeypatch.setattr(MailServer, "is_up", False)
        place_order(13)
        tidemill.run_until_idle()
        assert tidemill.enqueued(send_receipt, order_id=13)[0].state == "ready"
        monkeypatch.undo()
        tidemill.advance("2h")
        assert tidemill.enqueued(send_receipt, order_id=13)[0].state == "succeeded"


def test_a_receipt_is_sent_although_processes_die(tidemill):
    place_order(7)
    tidemill.simulate(seed=7, crashes=2)
    assert tidemill.enqueued(send_receipt, order_id=7)[0].result == "receipt 7"


def test_a_job_runs_at_once_where_the_test_wants_it(tidemill):
    with tidemill.running(inline=True):
        place_order(8)
        assert tidemill.enqueued(send_receipt, order_id=8)[0].state == "succeeded"


def test_the_shop_is_cleaned_every_night(tidemill):
    with tidemill.running():
        tidemill.not_enqueued(clean_up)
        tidemill.advance("3d")
        assert len(tidemill.enqueued(clean_up)) == 3


async def test_a_refund_expires_after_two_weeks(tidemill):
    with tidemill.running():
        refund = await app.start(Refund, Order(id=1))
        tidemill.advance("13d")
        tidemill.started(Refund, id=1, state="running")
        tidemill.advance("2d")
        assert await refund == "expired"


async def test_a_parcel_that_comes_back_is_refunded(tidemill):
    with tidemill.running():
        refund = await app.start(Refund, Order(id=2))
        tidemill.advance("13d")
        await refund.send_event(Returned())
        assert await refund == "refunded"


async def test_a_bad_review_sends_a_receipt_again(tidemill):
    with tidemill.running():
        await app.streams.publish_many("reviews", [{"order": 5, "stars": 5}, {"order": 6, "stars": 1}])
        tidemill.published("reviews", stars=1)
        tidemill.enqueued(send_receipt, order_id=6, within="30s")
        tidemill.not_enqueued(send_receipt, order_id=5)


def test_reviews_of_another_source_are_judged_alike(tidemill):
    tidemill.feed(reviews, [{"order": 15, "stars": 5}, {"order": 16, "stars": 1}])
    with tidemill.running():
        tidemill.enqueued(send_receipt, order_id=16, within="30s")
        tidemill.not_enqueued(send_receipt, order_id=15)


def test_a_fridge_that_stays_warm_opens_an_alert(tidemill):
    began = tidemill.now().timestamp()
    sent = tidemill.catch_notices(fridges)
    tidemill.feed(fridges, [{"id": 1, "fridge": "dairy", "celsius": 12, "at": began}])
    with tidemill.running():
        tidemill.advance("5m")
        with pytest.raises(AssertionError, match="warm has opened no alert"):
            tidemill.alerts("warm", entity="dairy")
        tidemill.advance("6m")
        tidemill.alerts("warm", entity="dairy", within="30s")
        assert tidemill.run_until(lambda: sent)[0].alerts[0].entity == "dairy"


def test_a_label_is_printed_by_the_printer_of_the_test(tidemill):
    class Fake(Printer):
        def print(self, label: str) -> str:
            return f"pretended to print {label}"

    tidemill.override({Printer: Fake()})
    app.enqueue_sync(print_label.call(order_id=7))
    tidemill.run_until_idle()
    assert tidemill.enqueued(print_label)[0].result == "pretended to print label 7"
