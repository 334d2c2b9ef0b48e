"""Samples of hosts: one process per host writes them, they are kept for a while, and live views hear of them."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support import eventually, running_maintenance, value, worker_process
from tidemill import App
from tidemill.core.codec import decode
from tidemill.engine.roles.role import Role
from tidemill.engine.telemetry.gpu import NoProbe
from tidemill.engine.telemetry.hosts import HostReader, HostSample
from tidemill.engine.telemetry.sampler import Sampler, sampling
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate
from tidemill.store.telemetry.hosts import (
    ProcessPlace,
    forget_telemetry,
    list_hosts,
    read_samples,
    report,
    write_sample,
)

EVERY = 0.05
SAMPLES = "SELECT count(*) FROM tidemill.host_sample WHERE host = $1"


@asynccontextmanager
async def running_sampler(database: Database, host: str = "mill", **options: Any) -> AsyncIterator[Sampler]:
    sampler = Sampler(database, **{"every": EVERY, "host": host, "reader": HostReader(gpus=NoProbe()), **options})
    role = Role(sampler, database)
    task = asyncio.create_task(role.run())
    try:
        yield sampler
        assert not task.done(), "the sampler ended by itself"
        role.stop()
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def assert_all_written(database: Database, sampler: Sampler) -> None:
    """A sample is written before it is counted, and goes on being taken while this reads."""
    before = sampler.samples
    written = await value(database, SAMPLES, "mill")
    assert before <= written <= sampler.samples + 1, "one may be on its way"


async def test_a_sampler_keeps_samples_of_its_host(database: Database) -> None:
    async with running_sampler(database) as sampler:
        await eventually(lambda: sampler.samples >= 3)
    (row,) = await list_hosts(database)
    sample = decode(row["data"], HostSample)
    assert row["host"] == "mill"
    assert sample.memory_total > 0
    assert os.getpid() in [each.pid for each in sample.processes]
    assert len(await read_samples(database, "mill")) >= 1
    await assert_all_written(database, sampler)


async def test_two_processes_on_one_host_sample_it_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidemill.engine.telemetry.sampler.LEASE", 400)  # Nobody is late, however slow the machine is.
    async with running_sampler(database) as first, running_sampler(database) as second:
        await eventually(lambda: first.samples + second.samples >= 10)
        leaders = [sampler for sampler in (first, second) if sampler.leading]
        assert len(leaders) == 1
        assert 0 in (first.samples, second.samples), "the other wrote nothing"
        await assert_all_written(database, leaders[0])


async def test_samplers_that_start_at_the_same_moment_do_not_both_write(database: Database) -> None:
    writes = [write_sample(database, "mill", f"process {number}", b"{}", lease=60.0) for number in range(8)]
    answers = await asyncio.gather(*writes)
    assert sum(answer is not None for answer in answers) == 1
    assert await value(database, SAMPLES, "mill") == 1


async def test_two_hosts_are_sampled_each_by_its_own(database: Database) -> None:
    async with running_sampler(database, "a") as first, running_sampler(database, "b") as second:
        await eventually(lambda: first.samples and second.samples)
    assert [row["host"] for row in await list_hosts(database)] == ["a", "b"]


async def test_when_the_sampler_ends_another_takes_over_at_once(database: Database) -> None:
    async with running_sampler(database, every=EVERY) as second:
        async with running_sampler(database, every=30.0) as first:
            await eventually(lambda: first.leading or second.leading)
        await eventually(lambda: second.samples >= 2)


async def test_when_the_sampler_dies_another_takes_over(database: Database) -> None:
    assert await write_sample(database, "mill", "a process that is killed now", b"{}", lease=60.0) is not None
    async with running_sampler(database) as survivor:
        await eventually(lambda: survivor.samples >= 2)
    assert survivor.leading


async def test_samples_older_than_wanted_are_removed_by_the_next_ones(database: Database) -> None:
    await database.fetch(
        "INSERT INTO tidemill.host_sample "
        "SELECT 'mill', now() - n * interval '1 hour', '{}' FROM generate_series(20, 60) AS n"
    )
    for _ in range(3):
        assert await write_sample(database, "mill", "me", b"{}", lease=60.0, kept=86_400.0) is not None
    ages = await database.fetch("SELECT extract(epoch FROM now() - at)::float8 AS age FROM tidemill.host_sample")
    assert max(row["age"] for row in ages) < 86_400 + 60
    assert len(ages) == 4 + 3, "those of the last day stay: 20 to 23 hours old, and the new ones"


async def test_what_a_host_left_behind_is_forgotten_by_the_maintenance(database: Database) -> None:
    await database.fetch("INSERT INTO tidemill.host VALUES ('gone', 'x', now() - interval '2 days')")
    await database.fetch("INSERT INTO tidemill.host_sample VALUES ('gone', now() - interval '2 days', '{}')")
    await database.fetch("INSERT INTO tidemill.process VALUES ('gone', 1, 'worker', now() - interval '1 hour', '{}')")
    await report(database, ProcessPlace("here", 2, "worker"), {}, {})
    await forget_telemetry(database)
    assert await value(database, "SELECT count(*) FROM tidemill.host_sample") == 0
    assert await value(database, "SELECT count(*) FROM tidemill.host") == 0
    assert await value(database, "SELECT array_agg(host) FROM tidemill.process") == ["here"]


async def test_the_maintenance_forgets_it_on_its_rounds(app: App, database: Database) -> None:
    await database.fetch("INSERT INTO tidemill.process VALUES ('gone', 1, 'worker', now() - interval '1 hour', '{}')")
    async with running_maintenance(app):
        await eventually(lambda: _is_empty(database, "SELECT count(*) FROM tidemill.process WHERE host = 'gone'"))


async def test_one_process_samples_a_host(database: Database) -> None:
    assert await write_sample(database, "mill", "me", b"{}", lease=60.0) is not None
    assert await write_sample(database, "mill", "another", b"{}", lease=60.0) is None
    assert await write_sample(database, "mill", "me", b"{}", lease=60.0) is not None


async def test_telemetry_works_in_a_schema_of_any_name(empty_database_url: str) -> None:
    async with Database(DatabaseSettings(url=empty_database_url, schema="shop")) as database:
        await migrate(database)
        assert await write_sample(database, "mill", "me", b"{}", lease=60.0) == []


async def test_the_processes_of_workers_are_in_the_sample(database: Database, database_url: str) -> None:
    async with worker_process(database_url, ["work"]) as worker, running_sampler(database, socket.gethostname()):

        async def seen() -> bool:
            rows = await list_hosts(database)
            samples = [decode(row["data"], HostSample) for row in rows]
            return any(each.pid == worker.pid and each.memory > 0 for sample in samples for each in sample.processes)

        await eventually(seen)


async def test_sampling_begins_when_it_may_and_ends_with_the_block(database: Database) -> None:
    may = asyncio.Event()
    async with sampling(database, every=EVERY, when=may.wait):
        assert await value(database, "SELECT count(*) FROM tidemill.host") == 0
        may.set()
        await eventually(lambda: _is_there(database, "SELECT count(*) FROM tidemill.host_sample"))
    assert await value(database, "SELECT sampler FROM tidemill.host") == "", "another process may go on at once"


async def test_no_interval_means_no_sampling(database: Database) -> None:
    async def never() -> None:
        pytest.fail("it must not even wait")

    async with sampling(database, every=0.0, when=never):
        pass
    assert await value(database, "SELECT count(*) FROM tidemill.host") == 0


async def _is_empty(database: Database, statement: str) -> bool:
    return await value(database, statement) == 0


async def _is_there(database: Database, statement: str) -> bool:
    return await value(database, statement) > 0
