"""Traffic for the sixteen streams: a realistic mix of posts, with some that are malformed and some that are poison.

`python -m apps.content.traffic --rate 200 --seconds 60`
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import time
from collections.abc import Iterator

import msgspec

from apps.content.app import app, prepare, topics
from apps.content.corpus import PHRASES, sentence, text_of
from apps.content.posts import LONGEST, Post

#: How often each kind of post occurs, in percent; all others are harmless.
MIX = {"spam": 8, "abuse": 3, "violence": 1, "adult": 2, "scam": 2, "banger": 4, "thoughtful": 15, "shallow": 20}
REPLIES, MALFORMED, POISON = 0.45, 0.02, 0.005


def posts(seed: int) -> Iterator[bytes]:
    """Endless posts, as they come over the wire."""
    chance = random.Random(seed)
    for number in itertools.count(seed * 1_000_000):
        if chance.random() < MALFORMED:
            yield malformed(number, chance)
            continue
        label = chance.choices([*MIX, "plain"], [*MIX.values(), 100 - sum(MIX.values())])[0]
        text = "a" * (LONGEST + 1) if chance.random() < POISON else text_of(label, chance)
        parent = sentence(chance) if chance.random() < REPLIES else None
        likes = int(chance.paretovariate(0.8)) - 1
        media = ("photo",) if chance.random() < 0.2 else ()
        post = Post(number, chance.randrange(10_000), text, time.time(), parent, min(likes, 10**6), media)
        yield msgspec.json.encode(post)


def malformed(number: int, chance: random.Random) -> bytes:
    """What arrives when somebody upstream has a bad day."""
    whole = msgspec.json.encode(Post(number, 1, text_of(chance.choice([*PHRASES]), chance), time.time()))
    return chance.choice([whole[: len(whole) // 2], b'{"id": "seven"}', b"\xff\xfe not JSON", b""])


async def feed(rate: float, seconds: float, seed: int) -> int:
    """Put posts into all topics, evenly over time; the firehose gets half of them."""
    source, sent, began = posts(seed), 0, time.monotonic()
    chance = random.Random(seed + 1)
    first, *others = topics()
    while (passed := time.monotonic() - began) < seconds:
        due = int(rate * passed) - sent
        by_topic: dict[str, list[bytes]] = {}
        for post in itertools.islice(source, max(0, due)):
            by_topic.setdefault(first if chance.random() < 0.5 else chance.choice(others), []).append(post)
        for topic, some in by_topic.items():
            await app.streams.publish_many(topic, some)
        sent += max(0, due)
        await asyncio.sleep(0.05)
    return sent


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=100.0, help="posts a second")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    async with app:
        await prepare()
        print(f"{await feed(arguments.rate, arguments.seconds, arguments.seed)} posts sent")


if __name__ == "__main__":
    asyncio.run(main())
