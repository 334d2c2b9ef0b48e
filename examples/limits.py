"""Not twice, not too many at once, not too fast: unique keys, concurrency keys, rate limits and rate keys."""

import asyncio
import time

from tidemill import App

app = App("limits")
app.queue("api", rate="50/s", burst=1)

running: dict[int, int] = {}
most: dict[int, int] = {}


@app.task
async def rebuild_index(shop: int) -> str:
    return f"index of shop {shop} rebuilt"


@app.task(concurrency_key="customer-{customer}", max_concurrency=2)
async def import_files(customer: int, file: str) -> None:
    running[customer] = running.get(customer, 0) + 1
    most[customer] = max(most.get(customer, 0), running[customer])
    await asyncio.sleep(0.01)
    running[customer] -= 1


@app.task(queue="api")
async def call_api(page: int) -> float:
    return time.time()


@app.task(rate_key="{account}", rate="50/s", burst=1)
async def post(account: str) -> float:
    return time.time()


async def main() -> None:
    async with app.running(max_concurrency=20):
        first = await app.enqueue(rebuild_index.call(shop=1), unique_key="shop-1", delay="2s")
        second = await app.enqueue(rebuild_index.call(shop=1), unique_key="shop-1")
        print(f"the second is the first: {second.id == first.id}, created: {second.created}")

        calls = [import_files.call(customer=c, file=f"{n}.csv") for n in range(8) for c in (1, 2)]
        for job in await app.enqueue_many(calls):
            await app.wait(job, timeout="20s")
        print(f"at most at once per customer: {most}")

        pages = await app.enqueue_many(call_api.call(page=n) for n in range(20))
        starts = sorted([await job.result(timeout="20s") for job in pages])
        print(f"20 calls took at least 0.3 s: {starts[-1] - starts[0] > 0.3}")

        posts = await app.enqueue_many(post.call(account) for account in ["large"] * 20 + ["small"])
        *large, small = [await job.result(timeout="20s") for job in posts]
        print(f"20 posts of an account took at least 0.3 s: {max(large) - min(large) > 0.3}")
        print(f"another account did not wait for them: {small < max(large)}")
        await app.wait(first, timeout="10s")


if __name__ == "__main__":
    asyncio.run(main())
