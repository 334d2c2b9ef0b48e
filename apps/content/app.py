"""Content understanding: `tidemill up apps/content/app.py` runs it, `python -m apps.content.traffic` feeds it.

Posts come from the PostgreSQL log, or with CONTENT_KAFKA=host:port from Kafka topics of the same names. Live requests
are taken over gRPC and HTTP with CONTENT_GRPC and CONTENT_HTTP set to addresses.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import yaml

from apps.content.posts import Post
from tidemill import App
from tidemill.streams import KafkaSource, PostgresSource, Source
from tidemill.streams.config import stream_of

CONFIG = Path(__file__).with_name("content.yaml")
TABLE = """
CREATE TABLE IF NOT EXISTS content_result (
    post bigint NOT NULL, plan text NOT NULL, source text NOT NULL, found jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (post, plan));
CREATE INDEX IF NOT EXISTS content_result_at ON content_result (at DESC);
"""

app = App("content")


def declared() -> dict[str, Any]:
    """The stream as its configuration says it, from the broker that is configured."""
    options = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["streams"]["content"]
    kafka = os.environ.get("CONTENT_KAFKA")
    for source in options["sources"]:
        source |= {"type": "kafka", "bootstrap": kafka} if kafka else {"type": "postgres"}
        source["decoder"] = "apps.content.posts:Post"
    options["grpc"], options["http"] = os.environ.get("CONTENT_GRPC"), os.environ.get("CONTENT_HTTP")
    return options


stream = app.stream(stream_of("content", declared(), str(CONFIG)))
stream.declared_in = __file__


async def prepare() -> None:
    """Make the table of results; needs the database's schema."""
    database = await app._reach()
    await database.run(lambda connection: connection.execute(TABLE))


def topics() -> list[str]:
    """Every topic that is read, once."""
    found: list[str] = []
    for source in stream.sources:
        if isinstance(source, PostgresSource | KafkaSource) and source.topic not in found:
            found.append(source.topic)
    return found


async def main() -> None:
    """Make the table, and say what there is."""
    async with app:
        await prepare()
    print(f"{len(stream.sources)} streams over {len(topics())} topics, {len(stream.plans)} plans; the table is there")


__all__ = ["Post", "Source", "app", "prepare", "stream", "topics"]

if __name__ == "__main__":
    asyncio.run(main())
