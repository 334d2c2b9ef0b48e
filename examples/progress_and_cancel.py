"""A long job that says how far it is, and one that is stopped: in the loop, in a thread, in a process."""

import asyncio
import time
from typing import Any

from tidemill import App, JobHandle, current_job

app = App("exports")


@app.task
async def export(rows: int) -> str:
    job = current_job()
    for done in range(rows):
        job.report(done / rows, f"row {done} of {rows}")
        await asyncio.sleep(0.05)
    return f"{rows} rows exported"


@app.task
def export_in_thread() -> None:
    while True:
        current_job().check_cancelled()
        time.sleep(0.01)


@app.task(isolation="process")
def export_in_process() -> None:
    time.sleep(3600)


async def until_running(jobs: list[JobHandle[Any]]) -> None:
    while {(await app.jobs.get(job)).state for job in jobs} != {"running"}:
        await asyncio.sleep(0.02)


async def main() -> None:
    async with app.running():
        job = await app.enqueue(export.call(rows=20))
        seen: set[str | None] = set()
        while not (view := await app.jobs.get(job)).ended:
            seen.add(view.note)
            await asyncio.sleep(0.05)
        print(f"progress was seen: {len(seen) > 1}; {view.result}")

        calls = [export_in_thread.call(), export_in_process.call(), export.call(rows=100_000)]
        jobs = await app.enqueue_many(calls)
        await until_running(jobs)
        await app.jobs.cancel(*jobs, by="the example")
        for job in jobs:
            print((await app.wait(job, timeout="20s")).state)


if __name__ == "__main__":
    asyncio.run(main())
