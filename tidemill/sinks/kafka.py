"""A topic of Kafka as a sink: an item is sent when all replicas have it.

The client keeps the order of what it sends, also when it repeats: with `enable.idempotence` (the default), or else with
one request at a time. A batch that is not taken in time is dropped by the client and sent again, in the same order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.sinks.base import ID_HEADER, ItemRefused, SendResult, Sink, SinkItem, Unreachable

TAKEN_WITHIN = 15.0
PURGED_WITHIN = 1.0


class KafkaSink(Sink, frozen=True, tag="kafka"):
    """A topic of a Kafka cluster."""

    topic: str
    bootstrap: str = "localhost:9092"
    config: Mapping[str, Any] = {}
    """More settings of librdkafka, such as those of SASL."""

    @property
    def default_name(self) -> str:
        return self.topic

    def sender(self) -> KafkaSender:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise ConfigError(f"sink {self.name}: install tidemill[kafka] to write to Kafka") from None
        return KafkaSender(self)


class KafkaSender:
    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink
        self._producer: Any = None
        self._problem: str | None = None

    async def send(self, items: Sequence[SinkItem]) -> list[SendResult]:
        return await asyncio.to_thread(self._send, items)

    async def close(self) -> None:
        self._producer = None

    # -- in a thread, because the client blocks -----------------------------------------------------

    def _send(self, items: Sequence[SinkItem]) -> list[SendResult]:
        from confluent_kafka import KafkaException

        nothing = Unreachable("the brokers do not answer")
        results: list[SendResult] = [nothing] * len(items)
        try:
            producer = self._producer = self._producer or self._new_producer()
            for index, item in enumerate(items):
                taken = partial(_taken, results, index)
                try:
                    self._produce(producer, item, taken)
                except KafkaException as error:  # The client itself refuses some items, such as one that is too large.
                    taken(error.args[0], None)
            if producer.flush(TAKEN_WITHIN):
                producer.purge()
                producer.flush(PURGED_WITHIN)
        except KafkaException as error:
            nothing = Unreachable(str(error.args[0]))
            results = [nothing if isinstance(each, Unreachable) else each for each in results]
        if any(isinstance(each, Unreachable) for each in results):
            self._producer = None  # A new client: what the old one still holds must not arrive after the next items.
            if self._problem is not None:
                unreachable = Unreachable(self._problem)
                results = [unreachable if isinstance(each, Unreachable) else each for each in results]
        return results

    def _new_producer(self) -> Any:
        from confluent_kafka import Producer

        config = self._sink.config
        keeps_order = {} if config.get("enable.idempotence", True) else {"max.in.flight.requests.per.connection": 1}
        settings = {"bootstrap.servers": self._sink.bootstrap, "enable.idempotence": True, "acks": "all"}
        self._problem = None
        return Producer(
            {**settings, "message.timeout.ms": 0, "linger.ms": 5, "error_cb": self._report, **keeps_order, **config}
        )

    def _produce(self, producer: Any, item: SinkItem, taken: Any) -> None:
        key = None if item.key is None else item.key.encode()
        headers = [(name, value.encode()) for name, value in {**item.headers, ID_HEADER: item.id}.items()]
        while True:
            try:
                producer.produce(self._sink.topic, item.payload, key=key, headers=headers, on_delivery=taken)
                return
            except BufferError:
                producer.poll(0.1)  # The client's queue is full.

    def _report(self, error: Any) -> None:
        self._problem = str(error)


def _taken(results: list[SendResult], index: int, error: Any, _message: Any) -> None:
    """Called by the client when an item is stored, or not."""
    from confluent_kafka import KafkaError

    purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
    final = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.INVALID_MSG_SIZE, KafkaError.INVALID_MSG)
    if error is None:
        results[index] = None
    elif error.code() in final:
        results[index] = ItemRefused(error.str(), is_final=True)
    elif error.code() not in purged:
        results[index] = Unreachable(error.str())
