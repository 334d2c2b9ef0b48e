"""A stream: orders from two topics through plans, with a retry, a dead letter, a job and a sink that messages lead to.

python examples/stream.py                 everything in this process, then the end
tidemill up examples/stream.py            # the same as a service, with engines in processes of their own
tidemill stream status
"""

import asyncio
from typing import Any

from tidemill import App
from tidemill.ops.streams.dead_letters import ListDeadLetters, list_dead_letters
from tidemill.ops.streams.streams import ListStreams, list_streams
from tidemill.sinks import LogSink
from tidemill.sources import LogSource
from tidemill.streams import Filtered, Plan, Stream, task

app = App("orders")
receipts: set[int] = set()


@app.task
async def send_receipt(order: int) -> None:
    print(f"receipt for order {order}")
    receipts.add(order)


class Check(Plan, eligibility="check"):
    @task
    async def has_items(self, ctx):
        if not ctx.value["items"]:
            raise Filtered("an empty order")

    @task(after="has_items")
    async def total(self, ctx):
        total = sum(ctx.value["items"])
        if total < 0:
            raise ValueError(f"order {ctx.value['order']} costs {total}")
        if ctx.value["order"] == 3 and ctx.message.attempt == 1:
            raise ConnectionError("the price list was away for a moment")
        ctx.enqueue(send_receipt.call(order=ctx.value["order"]))
        ctx.emit("totals", {"order": ctx.value["order"], "total": total})  # sent when the order is done
        return total


orders = app.stream(
    Stream(
        "orders",
        plans=[Check],
        engines=0,  # in this process; say 2 for a service
        retry=app.retry(3, backoff="50ms"),
        sources=[
            LogSource("web", weight=3, eligibilities={"check"}),
            LogSource("shop", weight=1, max_qps=100, eligibilities={"check"}),
        ],
        sinks=[LogSink("totals")],  # or KafkaSink("totals"), NatsSink, RedisSink, HttpSink
    )
)


async def dispatchers() -> list[dict[str, Any]]:
    """What the dispatchers of the stream report."""
    found = await app.do(list_streams, ListStreams(name="orders"))
    return [each for stream in found.items for each in stream.dispatchers]


async def main() -> None:
    async with app.running():
        await app.streams.publish_many("web", [{"order": 1, "items": [5, 7]}, {"order": 2, "items": []}])
        await app.streams.publish_many("shop", [{"order": 3, "items": [4]}, {"order": 4, "items": [-9]}])
        while True:
            sources = [source for status in await dispatchers() for source in status["sources"]]
            if sum(source["done"] + source["dead"] for source in sources) == 4 and receipts == {1, 3}:
                break
            await asyncio.sleep(0.1)
        for source in sources:
            print(f"{source['name']}: {source['done']} done, {source['retried']} retried, {source['dead']} dead")
        for letter in (await app.do(list_dead_letters, ListDeadLetters(stream="orders"))).items:
            print(letter.error)


if __name__ == "__main__":
    asyncio.run(main())
