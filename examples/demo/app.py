"""A small shop at work, in all five shapes: jobs and a dag, a flow, a stream, a pipeline, a monitor.

    make demo            or: tidemill up examples/demo/app.py

The demo generates its own work, with some failures: open the printed URL and look around. Some runs are waiting for
input: answer them in the console on the screen Human input, or in a second terminal, after `. .venv/bin/activate` and
`export TIDEMILL_DIRECTORY=.tidemill/demo`:

    tidemill dag inputs            tidemill dag submit r1 agree '{"ok": true, "supplier": "Miller & Sons"}'
    tidemill runs                  tidemill send r2 OwnerSaid '{"response": "yes"}' --app examples/demo/app.py
    tidemill jobs                  tidemill stream status          tidemill monitor alerts
    tidemill pipeline status examples/demo/app.py
"""

import asyncio
import random
import time
from pathlib import Path

import world
from catalogue import catalogue
from fridges import fridges
from refunds import OwnerSaid, Refund, RefundAsked
from reviews import reviews
from stock import Stocktaking, stock

from tidemill import App, Discard, RetryAfter, Snooze, current_job

app = App("demo", workflow_folder=str(Path(__file__).parent / "workflows"))
app.queue("partners", rate="5/s")
app.dag(stock)
app.workflow(Refund, timeout=None)
app.stream(reviews)
app.pipeline(catalogue)
app.monitor(fridges)


# -- jobs: some fail, wait, repeat themselves -------------------------------------------------------


@app.task(every="1s", catchup="skip")
async def open_shop() -> dict:
    """Customers come in, each with an order."""
    orders = [take_order.call(order_id=number) for number in world.orders()]
    await app.enqueue_many(orders)
    return {"orders": len(orders)}


@app.task(queue="orders", tags=["order"])
async def take_order(order_id: int) -> dict:
    """One order leads to a charge, a receipt, a parcel and, now and then, a partner's blessing."""
    await asyncio.sleep(random.uniform(0.01, 0.1))
    await app.enqueue(charge_card.call(order_id=order_id))
    await app.enqueue(send_receipt.call(order_id=order_id), unique_key=f"receipt-{order_id}")
    await app.enqueue(pack_parcel.call(order_id=order_id), priority=random.choice([3, 5, 9]))
    if random.random() < 0.3:
        await app.enqueue(ask_partner.call(order_id=order_id), deadline="2m")
    return {"order": order_id}


@app.task(queue="orders", tags=["money"])
async def charge_card(order_id: int) -> dict:
    """Without a retry: a card that is declined stays declined."""
    await asyncio.sleep(random.uniform(0.02, 0.1))
    if random.random() < 0.03:
        raise PermissionError(f"the card of order {order_id} was declined")
    return {"cents": random.randrange(500, 20_000)}


@app.task(queue="mail", retry=app.retry(max_attempts=5, backoff="500ms"), budget="10s")
async def send_receipt(order_id: int) -> dict:
    """Mail servers are what they are."""
    await asyncio.sleep(random.uniform(0.01, 0.2))
    if random.random() < 0.15:
        raise ConnectionError("the mail server hung up")
    return {"sent_to": f"customer-{order_id}@example.org"}


@app.task(queue="parcels", concurrency_key="packer-{order_id}", max_concurrency=1)
def pack_parcel(order_id: int) -> dict:
    """Plain code in a thread; some parcels have no recipient."""
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
    """A long job that reports its progress."""
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


# -- the dag: its nodes are tasks -------------------------------------------------------------------


@app.task(every="15s", catchup="skip")
async def take_stock() -> dict:
    """Starts a run of the dag in stock.py."""
    run = await app.start(stock, Stocktaking(shelves=random.randint(4, 12)))
    return {"run": run.id}


@app.task(queue="parcels")
async def list_shelves(count: int) -> list[str]:
    return [f"shelf {number}" for number in range(1, count + 1)]


@app.task(queue="parcels")
async def count_shelf(shelf: str) -> int:
    """How many things are missing on a shelf."""
    for tenth in range(10):
        current_job().report(tenth / 10, shelf)
        await asyncio.sleep(random.uniform(0.05, 0.2))
    if random.random() < 0.03:
        raise LookupError(f"{shelf} is not where it was")
    return random.randrange(5)


@app.task(queue="reports")
async def add_up(counted: list[int]) -> dict:
    return {"things": sum(counted)}


@app.task(queue="partners")
async def order_more(things: int, supplier: str) -> dict:
    return {"ordered": things, "from": supplier}


# -- the flow: customers ask for their money, and sometimes the owner answers -----------------------


@app.task(every="5s", catchup="skip")
async def ask_for_refund() -> dict:
    """Starts a run of the workflow in refunds.py; of those that ask the owner, she answers most within seconds."""
    order, cents = random.choice(world.recent_orders()), random.randrange(300, 6_000)
    run = await app.start(Refund, RefundAsked(order_id=order, cents=cents))
    if random.random() < 0.7:
        await app.enqueue(answer_refund.call(run=run.id), delay=random.uniform(2, 12))
    return {"run": run.id}


@app.task
async def answer_refund(run: int) -> dict:
    """The owner, from her phone."""
    handle = await app.runs.get(run)
    if await handle.state() not in ("running", "needs_attention"):
        return {"already": "settled"}
    said = OwnerSaid(response="yes" if random.random() < 0.7 else "no")
    await handle.send_event(said)
    return {"answered": said.response}


# -- what the stream, the monitor and the pipeline live on ------------------------------------------


@app.task(every="1s", catchup="skip")
async def customers_talk() -> dict:
    """Reviews and visits arrive, some of them broken: see reviews.py."""
    said, seen = world.reviews(), world.visits()
    await app.streams.publish_many("reviews", said)
    await app.streams.publish_many("visits", seen)
    return {"reviews": len(said), "visits": len(seen)}


@app.task(every="1s", catchup="skip")
async def vans_report() -> dict:
    """The fridges of all vans send their readings: see fridges.py."""
    readings = world.readings(time.time())
    await app.streams.publish_many("fridges", readings)
    return {"readings": len(readings)}


@app.task(every="2s", catchup="skip")
def change_products() -> dict:
    """A person works on the catalogue's files: see catalogue.py."""
    return {"written": world.write_product(catalogue.root)}
