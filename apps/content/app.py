"""Content understanding: `tidemill up apps/content/app.py` runs it, `python -m apps.content.traffic` feeds it.

Posts come from the PostgreSQL log, or with CONTENT_KAFKA=host:port from Kafka topics of the same names; more settings
of its client are JSON in CONTENT_KAFKA_CONFIG. Live requests are taken over gRPC and HTTP with CONTENT_GRPC and
CONTENT_HTTP set to addresses. What the plans find is shown at /pages/content/ of the server.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import yaml

from apps.content.page import page
from tidemill import App
from tidemill.sources import KafkaSource, LogSource
from tidemill.streams.definition.config import stream_of

HERE = Path(__file__).parent
CONFIG = HERE / "content.yaml"

app = App("content")
app.migrations(HERE / "migrations")
app.add_page(page)


def kafka_settings() -> dict[str, Any] | None:
    """The address and the settings of Kafka; None if posts are in the PostgreSQL log."""
    bootstrap = os.environ.get("CONTENT_KAFKA")
    if not bootstrap:
        return None
    return {"bootstrap": bootstrap, "config": json.loads(os.environ.get("CONTENT_KAFKA_CONFIG", "{}"))}


def declared() -> dict[str, Any]:
    """The stream of the configuration file, with the configured broker."""
    options = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["streams"]["content"]
    kafka = kafka_settings()
    for source in options["sources"]:
        source |= {"type": "kafka", **kafka} if kafka else {"type": "log"}
        source["decoder"] = "apps.content.posts:Post"
    options["grpc"], options["http"] = os.environ.get("CONTENT_GRPC"), os.environ.get("CONTENT_HTTP")
    return options


stream = app.stream(stream_of("content", declared(), str(CONFIG)))
stream.declared_in = __file__


def topics() -> list[str]:
    """Every topic that is read, once."""
    found = [source.topic for source in stream.sources if isinstance(source, LogSource | KafkaSource)]
    return list(dict.fromkeys(found))
