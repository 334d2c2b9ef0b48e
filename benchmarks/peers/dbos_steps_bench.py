"""DBOS: async workflows of ten no-op steps, 64 under way in one process, called directly (no queue between)."""

from dbos import DBOS  # pyright: ignore[reportMissingImports]

from benchmarks.peers import flow_contest
from benchmarks.peers.flow_contest import STEPS, Options, Tally

CONNECTIONS = 20


async def durable_steps(options: Options) -> float:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": options.dsn,
            "sys_db_pool_size": CONNECTIONS,
            "application_version": "bench",
            "log_level": "ERROR",
        }
    )

    steps = Tally()

    @DBOS.step(name="turn")
    async def turn(n: int) -> int:
        steps.done += 1
        return n + 1

    @DBOS.workflow(name="chain")
    async def chain() -> int:
        n = 0
        for _ in range(STEPS):
            n = await turn(n)
        return n

    DBOS.launch()
    try:
        return await flow_contest.crowded_rate(chain, steps, options)
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    flow_contest.main({"durable_steps": durable_steps})
