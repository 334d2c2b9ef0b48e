"""LlamaIndex Workflows in memory, without persistence: the programs of `flow_contest`, unmodified."""

import asyncio
import types

import workflows  # pyright: ignore[reportMissingImports]
import workflows.events  # pyright: ignore[reportMissingImports]

from benchmarks.peers import flow_contest
from benchmarks.peers.flow_contest import Options

API = types.SimpleNamespace(**{**vars(workflows.events), **vars(workflows)})
PROGRAMS = flow_contest.programs(API, flow_contest.Tally())
SETTLE_S = 0.5


async def waiting_bytes(options: Options) -> float:
    """Runs stay in memory for as long as they wait."""
    workflow = PROGRAMS.ask(timeout=None)
    waiting = [workflow.run() for _ in range(flow_contest.WAITING_WARMUPS)]
    await asyncio.sleep(SETTLE_S)
    before = flow_contest.resident_bytes()
    while len(waiting) < flow_contest.WAITING_WARMUPS + options.runs:
        waiting.append(workflow.run())
        if len(waiting) % 100 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(SETTLE_S)
    grown = flow_contest.resident_bytes() - before
    for run in waiting:
        run.cancel()
    return grown / options.runs


if __name__ == "__main__":
    flow_contest.main({**flow_contest.in_memory(PROGRAMS), "waiting_bytes": waiting_bytes})
