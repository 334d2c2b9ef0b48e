"""Traffic for the sixteen streams: a realistic mix of posts, with some that are malformed and some that are poison.

`python -m apps.content.traffic --rate 200 --seconds 60`

Posts go where the application reads them: into the PostgreSQL log, or to Kafka with CONTENT_KAFKA=host:port.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from apps.content.app import app, kafka_settings, topics
from apps.content.corpus import PHRASES, sentence, text_of
from apps.content.posts import LONGEST, Post

#: How often each kind of post occurs, in percent; all others are harmless.
MIX = {"spam": 8, "abuse": 3, "violence": 1, "adult": 2, "scam": 2, "banger": 4, "thoughtful": 15, "shallow": 20}
REPLIES, MALFORMED, POISON = 0.45, 0.02, 0.005

Put = Callable[[str, list[bytes]], Awaitable[None]]


def posts(seed: int) -> Iterator[bytes]:
    """Endless posts as bytes."""
    chance = random.Random(seed)
    for number in itertools.count(seed * 1_000_000):
        if chance.random() < MALFORMED:
            yield malformed(number, chance)
            continue
        label = chance.choices([*MIX, "plain"], [*MIX.values(), 100 - sum(MIX.values())])[0]
        text = text_of(label, chance)
        if chance.random() < POISON:
            text = poisoned(text, chance)
        parent = sentence(chance) if chance.random() < REPLIES else None
        likes = int(chance.paretovariate(0.8)) - 1
        media = ("photo",) if chance.random() < 0.2 else ()
        post = Post(number, chance.randrange(10_000), text, time.time(), parent, min(likes, 10**6), media)
        yield msgspec.json.encode(post)


def poisoned(text: str, chance: random.Random) -> str:
    """A post that decodes and always fails: too long for any model, or with text that no database stores."""
    return chance.choice(["a" * (LONGEST + 1), f"{text}\0"])


def malformed(number: int, chance: random.Random) -> bytes:
    """Messages that an upstream system gets wrong."""
    whole = msgspec.json.encode(Post(number, 1, text_of(chance.choice([*PHRASES]), chance), time.time()))
    return chance.choice([whole[: len(whole) // 2], b'{"id": "seven"}', b"\xff\xfe not JSON", b""])


async def feed(put: Put, rate: float, seconds: float, seed: int) -> int:
    """Put posts into all topics, evenly over time; the firehose gets half of them."""
    source, sent, began = posts(seed), 0, time.monotonic()
    chance = random.Random(seed + 1)
    first, *others = topics()
    while (passed := time.monotonic() - began) < seconds:
        due = max(0, int(rate * passed) - sent)
        by_topic: dict[str, list[bytes]] = {}
        for post in itertools.islice(source, due):
            by_topic.setdefault(first if chance.random() < 0.5 else chance.choice(others), []).append(post)
        for topic, some in by_topic.items():
            await put(topic, some)
        sent += due
        await asyncio.sleep(0.05)
    return sent


def to_kafka(bootstrap: str, config: Mapping[str, Any]) -> tuple[Put, Callable[[], int]]:
    """A function that sends posts to Kafka, and one that waits until all have arrived."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **config})

    async def put(topic: str, some: list[bytes]) -> None:
        for post in some:
            producer.produce(topic, post)
        producer.poll(0)

    return put, producer.flush


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=100.0, help="posts a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument(
        "--seed", type=int, default=None, help="the same posts with the same seed; others each time without"
    )
    parser.add_argument(
        "--directory",
        default=None,
        help="the directory of the embedded database, if it is not the default one",
    )
    arguments = parser.parse_args()
    seed = random.randrange(1_000_000) if arguments.seed is None else arguments.seed
    kafka = kafka_settings()
    if kafka:
        put, flush = to_kafka(**kafka)
        sent = await feed(put, arguments.rate, arguments.seconds, seed)
        left = await asyncio.to_thread(flush)
        print(f"{sent - left} posts sent to Kafka" + (f", {left} did not arrive" if left else ""))
        return
    app.declarations.configure(directory=arguments.directory)
    async with app:
        print(f"{await feed(app.streams.publish_many, arguments.rate, arguments.seconds, seed)} posts sent")


if __name__ == "__main__":
    asyncio.run(main())
