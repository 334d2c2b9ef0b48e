"""A small shop at work: jobs of several kinds, some of which fail, stall, wait or repeat themselves.

    make demo            or: tidemill up examples/demo.py

The schedule `open_shop` brings customers in; watch the queues, then look around in a second terminal:

    tidemill jobs        tidemill job 12        tidemill workers        tidemill schedules
    tidemill dag runs    tidemill run r1        tidemill dag inputs     tidemill dag submit r1 agree '{"ok": true}'
"""

import asyncio
import random
import time

from tidemill import App, Discard, RetryAfter, Snooze, current_job
from tidemill.dags import Dag, input_node, node, ref

app = App("demo")
app.queue("partners", rate="5/s")

stock = app.dag(
    Dag(
        "stock",
        nodes=[
            node("shelves", "list_shelves", args={"count": ref("run.shelves")}),
            node("count", "count_shelf", map=ref("shelves"), args={"shelf": ref("item")}, max_parallel=3),
            node("missing", "add_up", args={"counted": ref("count")}),
            input_node("agree", prompt="Order {{$.missing.things}} things?", timeout="30s", default={"ok": False}),
            node("order", "order_more", args={"things": ref("missing.things")}, skip_if="!agree.ok", deps=["agree"]),
        ],
    )
)


@app.task(every="1s", catchup="skip")
async def open_shop() -> dict:
    """Customers come in, each with an order."""
    orders = [{"order_id": random.randrange(10_000)} for _ in range(random.randint(2, 8))]
    await app.enqueue_many(take_order, orders)
    return {"orders": len(orders)}


@app.task(queue="orders", tags=["order"])
async def take_order(order_id: int) -> dict:
    """One order leads to a receipt, a parcel and, now and then, a partner's blessing."""
    await asyncio.sleep(random.uniform(0.01, 0.1))
    await app.enqueue(send_receipt, order_id=order_id, unique_key=f"receipt-{order_id}")
    await app.enqueue(pack_parcel, order_id=order_id, priority=random.choice([3, 5, 9]))
    if random.random() < 0.3:
        await app.enqueue(ask_partner, order_id=order_id, deadline="2m")
    return {"order": order_id}


@app.task(queue="mail", retry=app.retry(max_attempts=5, backoff="500ms"), budget="10s")
async def send_receipt(order_id: int) -> dict:
    """Mail servers are what they are."""
    await asyncio.sleep(random.uniform(0.01, 0.2))
    if random.random() < 0.15:
        raise ConnectionError("the mail server hung up")
    return {"sent_to": f"customer-{order_id}@example.org"}


@app.task(queue="parcels", concurrency_key="packer-{order_id}", concurrency=1)
def pack_parcel(order_id: int) -> dict:
    """Plain code in a thread; some parcels turn out to be for nobody."""
    time.sleep(random.uniform(0.02, 0.15))
    if random.random() < 0.02:
        raise Discard(f"order {order_id} was cancelled while we packed")
    return {"weight_g": random.randrange(200, 5_000)}


@app.task(queue="partners", retry=app.retry(max_attempts=4))
async def ask_partner(order_id: int) -> dict:
    """A slow outside service with a rate limit of its own."""
    await asyncio.sleep(random.uniform(0.05, 0.3))
    fate = random.random()
    if fate < 0.05:
        raise RetryAfter("2s", "the partner asks us to slow down")
    if fate < 0.1:
        raise Snooze("3s", "the partner has not decided yet")
    return {"blessed": True}


@app.task(queue="reports", every="10s", budget="1m", stall="20s")
async def daily_report() -> dict:
    """A long job that tells how far it is."""
    job = current_job()
    chapters = ["orders", "receipts", "parcels", "partners", "money"]
    for number, chapter in enumerate(chapters):
        for step in range(10):
            job.report((number + step / 10) / len(chapters), f"chapter {chapter}")
            await asyncio.sleep(0.15)
    job.report(1.0, "printed")
    return {"pages": len(chapters) * 3}


@app.task(queue="reports", every="15s", isolation="process", retry=2)
def render_thumbnail() -> dict:
    """Untrusted native code would run here: in a process of its own."""
    total = sum(index * index for index in range(300_000))
    return {"checksum": total % 9973}


@app.task(every="20s", catchup="skip")
async def take_stock() -> dict:
    """Starts a run of the dag above: look at it with `tidemill dag runs`, and answer it within half a minute."""
    run = await app.start(stock, shelves=random.randint(4, 12))
    return {"run": run.id}


@app.task(queue="parcels")
async def list_shelves(count: int) -> list[str]:
    return [f"shelf {number}" for number in range(count)]


@app.task(queue="parcels")
async def count_shelf(shelf: str) -> int:
    """How many things are missing on a shelf."""
    for tenth in range(10):
        current_job().report(tenth / 10, shelf)
        await asyncio.sleep(random.uniform(0.05, 0.2))
    return random.randrange(5)


@app.task(queue="reports")
async def add_up(counted: list[int]) -> dict:
    return {"things": sum(counted)}


@app.task(queue="partners")
async def order_more(things: int) -> dict:
    return {"ordered": things}
