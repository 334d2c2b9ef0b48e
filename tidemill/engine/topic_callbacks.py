"""Callbacks for notifications about a topic: a topic of the log, the lease of a cursor, an outbox."""

from __future__ import annotations

from collections.abc import Callable

from tidemill.store.notify import ANYTHING


class TopicCallbacks:
    """What is called when a topic is notified, or when any notification may have been missed."""

    def __init__(self) -> None:
        self._callbacks: dict[str, list[Callable[[], None]]] = {}

    def on(self, topic: str, callback: Callable[[], None]) -> None:
        self._callbacks.setdefault(topic, []).append(callback)

    def notified(self, payload: str) -> None:
        """Call back for the topic that is the payload of a notification."""
        topics = self._callbacks if payload == ANYTHING else (payload,)
        for topic in topics:
            for callback in self._callbacks.get(topic, ()):
                callback()
