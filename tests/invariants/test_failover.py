"""A cluster that fails over under work of all shapes: nothing that was acknowledged is lost, and the work goes on."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest

from tests.support import eventually
from tests.support.all_shapes import stage
from tests.support.patroni import Cluster, patroni_cluster
from tidemill.store.migrate import OWN_CHAIN

FAILOVERS = 5

#: Seconds from a promotion until work of every shape ends again.
BACK_WITHIN = 10.0

#: When work of each shape with these numbers ended first after a moment.
ENDED = """
SELECT extract(epoch FROM greatest(
    (SELECT min(finished_at) FROM tidemill.job_history
     WHERE task = 'double' AND args ->> 'number' = ANY ($2) AND created_at > to_timestamp($1)),
    (SELECT min(ended_at) FROM tidemill.run
     WHERE workflow = 'Order' AND input -> 'value' ->> 'number' = ANY ($2) AND created_at > to_timestamp($1)),
    (SELECT min(finished_at) FROM tidemill.job_history
     WHERE task = 'noted' AND args ->> 'number' = ANY ($2) AND created_at > to_timestamp($1))))::float8
"""


async def ends_again(cluster: Cluster, since: float, first: int) -> float:
    """Seconds after a promotion until each shape of a load, numbered from `first` on, ended again."""
    numbers = [str(number) for number in range(first, first + 20_000)]

    async def ended() -> float | None:
        try:
            connection = await asyncpg.connect(cluster.proxy_url, timeout=5)
        except (OSError, asyncpg.PostgresError):
            return None
        try:
            return await connection.fetchval(ENDED, since, numbers)
        finally:
            await connection.close()

    return await eventually(ended, what="work of every shape ends again") - since


@pytest.mark.long
@pytest.mark.timeout(1500)
async def test_five_failovers_under_work_of_all_shapes_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    back: list[float] = []
    async with patroni_cluster() as cluster:
        with stage(cluster.proxy_url, tmp_path) as proxy, stage(cluster.hosts_url, tmp_path) as hosts:
            for on, name in ((proxy, "proxy"), (hosts, "hosts")):
                on.up(f"{name}-up", TIDEMILL_LEASE_SECONDS="20s")
            await proxy.migrated(OWN_CHAIN.latest)
            loads = [proxy.load("proxy-load", pause=0.5), hosts.load("hosts-load", first=1_000_000, pause=0.5)]
            for on, name in ((proxy, "proxy-load"), (hosts, "hosts-load")):
                await on.has_acknowledged(name, 3)
            for _ in range(FAILOVERS):
                await cluster.wait_synchronous()
                killed, promoted = await cluster.kill_primary()
                back += [await ends_again(cluster, promoted, first) for first in (0, 1_000_000)]
                killed.start()
            for load in loads:
                assert load.is_alive, load.said
                assert await load.stop() == 0, load.said
            for on, name in ((proxy, "proxy-load"), (hosts, "hosts-load")):
                await on.all_finished(name)
    print(f"seconds from promotion to work of every shape: {', '.join(f'{each:.1f}' for each in back)}")
    assert max(back) < BACK_WITHIN
