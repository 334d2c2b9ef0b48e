"""A topic of the PostgreSQL log as a sink: an item is appended in the transaction of its message's outcome.

Nothing is sent afterwards and nothing can be refused, so there is no sender.
"""

from __future__ import annotations

from tidemill.sinks.base import Sink


class LogSink(Sink, frozen=True, tag="log"):
    """A topic of the PostgreSQL log."""

    topic: str

    @property
    def default_name(self) -> str:
        return self.topic
