"""Four ways to fail: try again by policy, after a given time, later without counting, or never."""

import asyncio

from tidemill import App, Discard, RetryAfter, Snooze, current_job

app = App("failures")


@app.task(retry=app.retry(max_attempts=3, backoff="50ms"))
async def flaky() -> str:
    if current_job().attempt < 3:
        raise ConnectionError("the other side hung up")
    return "third time lucky"


@app.task(retry=app.retry(max_attempts=3))
async def polite() -> str:
    if current_job().attempt < 2:
        raise RetryAfter("100ms", "asked to slow down")
    return "waited as told"


@app.task
async def early() -> str:
    if current_job().attempt < 3:
        raise Snooze("50ms", "the report is not there yet")
    return "now it is"


@app.task(retry=app.retry(max_attempts=10))
async def pointless(order_id: int) -> str:
    raise Discard(f"order {order_id} was cancelled")


async def main() -> None:
    async with app.running():
        jobs = [await app.enqueue(task.call()) for task in (flaky, polite, early)]
        jobs.append(await app.enqueue(pointless.call(order_id=3)))
        for job in jobs:
            ended = await app.wait(job, timeout="10s")
            print(f"{ended.state}: {ended.result or ended.note}")


if __name__ == "__main__":
    asyncio.run(main())
