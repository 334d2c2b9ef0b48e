"""Other consumers of one Kafka topic, with a handler per message that only counts: messages a second, one JSON line.

`--peer confluent-kafka|faststream|quixstreams --bootstrap HOST:PORT --topic T --messages N`
"""

import argparse
import json
import os
import threading
import time

OLD = {"api.version.request": False, "broker.version.fallback": "0.9.0.1", "session.timeout.ms": 6000, "log_level": 0}


class Counter:
    """Says how long it took from the first message to the last, then ends the process."""

    def __init__(self, wanted: int) -> None:
        self.wanted, self.count, self.began = wanted, 0, 0.0

    def one(self) -> None:
        if not self.count:
            self.began = time.perf_counter()
        self.count += 1
        if self.count == self.wanted:
            print(json.dumps({"rate": (self.wanted - 1) / (time.perf_counter() - self.began)}), flush=True)
            threading.Thread(target=os._exit, args=(0,)).start()


def confluent_kafka(arguments: argparse.Namespace, counter: Counter) -> None:
    """The bare client, one poll and one call per message, commits in the background."""
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": arguments.bootstrap, "group.id": arguments.group, "auto.offset.reset": "earliest", **OLD}
    )
    consumer.subscribe([arguments.topic])
    while True:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            counter.one()


def faststream(arguments: argparse.Namespace, counter: Counter) -> None:
    import asyncio
    import logging

    from faststream import FastStream  # pyright: ignore[reportMissingImports]
    from faststream.confluent import KafkaBroker  # pyright: ignore[reportMissingImports]

    broker = KafkaBroker(
        arguments.bootstrap, config=OLD, logger=None, log_level=logging.ERROR, allow_auto_create_topics=False
    )

    @broker.subscriber(arguments.topic, group_id=arguments.group, auto_offset_reset="earliest")
    async def handle(body: bytes) -> None:
        counter.one()

    asyncio.run(FastStream(broker, logger=None).run())


def quixstreams(arguments: argparse.Namespace, counter: Counter) -> None:
    from quixstreams import Application  # pyright: ignore[reportMissingImports]
    from quixstreams.models.topics import TopicConfig  # pyright: ignore[reportMissingImports]
    from quixstreams.models.topics.admin import TopicAdmin  # pyright: ignore[reportMissingImports]

    # It asks the broker for a topic's settings, which this old broker cannot tell.
    known = TopicConfig(num_partitions=2, replication_factor=1)
    TopicAdmin.inspect_topics = lambda self, names, *_, **__: dict.fromkeys(names, known)
    app = Application(
        broker_address=arguments.bootstrap,
        consumer_group=arguments.group,
        auto_offset_reset="earliest",
        consumer_extra_config=OLD,
        producer_extra_config={
            **{name: value for name, value in OLD.items() if not name.startswith("session")},
            "enable.idempotence": False,
        },
        auto_create_topics=False,
        use_changelog_topics=False,
        loglevel="ERROR",
    )
    frame = app.dataframe(app.topic(arguments.topic, value_deserializer="bytes", key_deserializer="bytes"))
    frame.update(lambda _: counter.one())
    app.run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--messages", type=int, required=True)
    arguments = parser.parse_args()
    peers = {"confluent-kafka": confluent_kafka, "faststream": faststream, "quixstreams": quixstreams}
    peers[arguments.peer](arguments, Counter(arguments.messages))


if __name__ == "__main__":
    main()
