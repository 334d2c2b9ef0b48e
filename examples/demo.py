"""A small shop at work: jobs of several kinds, some of which fail, stall, wait or repeat themselves.

    make demo            or: tidemill up examples/demo.py

The schedule `open_shop` brings customers in; watch the queues, then look around in a second terminal:

    tidemill jobs        tidemill job 12        tidemill workers        tidemill schedules
"""

import asyncio
import random
import time

from tidemill import App, Discard, RetryAfter, Snooze, current_job

app = App("demo")
app.queue("partners", rate="5/s")


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
