"""Fixtures for the tests that need a server or a broker of the machine's own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.external import External, external_server
from tests.support.brokers import Kafka, Nats, Redis, require_kafka, require_nats, require_redis


@pytest.fixture(scope="session")
def external() -> Iterator[External]:
    """Debian's PostgreSQL on a loopback port, with a password; shared by the tests that need it."""
    with external_server() as server:
        yield server


@pytest.fixture(scope="module")
def kafka() -> Iterator[Kafka]:
    """A broker that is started for the tests of one file."""
    require_kafka()
    broker = Kafka()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def nats() -> Iterator[Nats]:
    require_nats()
    broker = Nats()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()


@pytest.fixture(scope="module")
def redis() -> Iterator[Redis]:
    require_redis()
    broker = Redis()
    try:
        broker.start()
        yield broker
    finally:
        broker.close()
