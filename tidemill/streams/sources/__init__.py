"""Where messages come from. Each kind has a declaration (`KafkaSource`) and a tap that is open while a stream runs."""

from __future__ import annotations

from tidemill.streams.sources.base import Source


def kinds() -> dict[str, type[Source]]:
    """Every kind of source by the name that configuration uses."""
    from tidemill.streams.sources.http import HttpSource
    from tidemill.streams.sources.jsonl import JsonlSource
    from tidemill.streams.sources.kafka import KafkaSource
    from tidemill.streams.sources.nats import NatsSource
    from tidemill.streams.sources.postgres import PostgresSource
    from tidemill.streams.sources.redis import RedisSource

    return {
        "http": HttpSource,
        "jsonl": JsonlSource,
        "kafka": KafkaSource,
        "nats": NatsSource,
        "postgres": PostgresSource,
        "redis": RedisSource,
    }
