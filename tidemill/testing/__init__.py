"""Tests of an application: the pytest plugin's fixture `tidemill`, and fakes of what cannot be had in a test.

    def test_an_order_sends_a_receipt(tidemill):
        tidemill.use(app)
        place_order(7)                                      # calls app.enqueue_sync(...)
        tidemill.enqueued(send_receipt, order_id=7)
        tidemill.run_until_idle()

The plugin is installed with the package: there is nothing to import. See docs/testing.md.
"""

from tidemill.testing.fakes import FakeChannel, FakeHttp, FakeLlm, FakeReply
from tidemill.testing.kit import TestKit

__all__ = ["FakeChannel", "FakeHttp", "FakeLlm", "FakeReply", "TestKit"]
