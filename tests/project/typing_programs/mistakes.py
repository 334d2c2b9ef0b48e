"""Mistakes that a strict type checker must find: every line that ends in `# wrong`, and no other."""

from __future__ import annotations

from datetime import timedelta

from program import Article, Nightly, Topic, app, count_rows, mail, nightly, send_receipt

from tidemill import App
from tidemill.atomic import Atomic, AtomicSync
from tidemill.flows import StartEvent, Workflow
from tidemill.sources import KafkaSource
from tidemill.streams import Context as MessageContext

App("shop", nonsense=3)  # wrong
App("shop", lifespan=count_rows)  # wrong
App("shop", middleware=[send_receipt])  # wrong
mail.call(order_id="seven")  # wrong
App("shop", lease_second=3)  # wrong
App("shop", max_concurrency="four")  # wrong
KafkaSource("posts", bootsrap="broker:9092")  # wrong
app.retry(max_attempt=5)  # wrong
app.schedule("night", count_rows.call(), cron="0 3 * * *")  # wrong
app.schedule("night", count_rows.call(path="a"), corn="0 3 * * *")  # wrong
app.schedule("night", count_rows, cron="0 3 * * *")  # wrong
app.schedule("night", nightly, Topic(topic="tides"), cron="0 3 * * *")  # wrong
app.schedule("night", Article, Nightly(day="monday"), cron="0 3 * * *")  # wrong
app.schedule("night", "count_rows", cron="0 3 * * *")  # wrong
app.schedule("night", count_rows.call(path="a"), every="1h", overlap="replace")  # wrong
app.task(every="1h", overlap="replace")  # wrong
app.task(queu="mail")  # wrong
app.workflow(timeuot=3)  # wrong


class Other(StartEvent):
    """The start event of no workflow here."""

    number: int


class Wrong(Workflow[Topic, str]):
    """A workflow for its constructor."""


async def jobs() -> None:
    """Jobs with wrong arguments, options and results."""
    await app.enqueue(send_receipt.call(ordr_id=7))  # wrong
    await app.enqueue(send_receipt.call())  # wrong
    await app.enqueue(send_receipt.call("seven"))  # wrong
    await app.enqueue(send_receipt.call(order_id="seven"))  # wrong
    await app.enqueue(send_receipt.call(order_id=7, colour="red"))  # wrong
    await app.enqueue(send_receipt.call(order_id=7), delya="10m")  # wrong
    await app.enqueue(send_receipt.call(order_id=7), delay=["10m"])  # wrong
    await app.enqueue(send_receipt.call(order_id=7), prioritty=3)  # wrong
    await app.enqueue(send_receipt.call(order_id=7), priority="high")  # wrong
    await app.enqueue(send_receipt, wrong_arg=1)  # wrong
    await app.enqueue(send_receipt, order_id="seven")  # wrong
    await app.enqueue(send_receipt, order_id=7, delya="10m")  # wrong
    await app.enqueue(send_receipt(7))  # wrong
    await app.enqueue(len)  # wrong
    app.enqueue_sync(count_rows.call(path=7))  # wrong
    app.enqueue_sync(count_rows.call(path="a"), queu="slow")  # wrong
    await app.enqueue_many(send_receipt.call(order_id=str(n)) for n in range(3))  # wrong
    await app.enqueue_many([send_receipt.call(order_id=7)], debounce="1s")  # wrong
    await app.enqueue_many(send_receipt.call(order_id=7))  # wrong
    await app.batch([send_receipt.call(order_id=7)], debounce="1s")  # wrong
    await app.batch([send_receipt.call(order_id=7)], on_success="send_receipt")  # wrong
    await app.jobs.enqueue(send_receipt.call(order_id=7), delya="10m")  # wrong
    text: str = await (await app.enqueue(count_rows.call(path="a")))  # wrong
    texts: list[str] = await (await app.batch([count_rows.call(path="a")]))  # wrong
    print(texts, text, await app.wait("12"))  # wrong


async def runs() -> None:
    """Runs with wrong events, arguments and results."""
    await app.start(Article, Topic(topik="tides"))  # wrong
    await app.start(Article, Topic(topic=3))  # wrong
    await app.start(Article, Other(number=3))  # wrong
    await app.start(Article, StartEvent(topic="tides"))  # wrong
    await app.start(Article, Topic(topic="tides"), unique_kye="t")  # wrong
    await app.start(Article, Topic(topic="tides"), delya="10m")  # wrong
    await app.start(nightly, Nightly(dya="monday"))  # wrong
    await app.start(nightly, Topic(topic="tides"))  # wrong
    await app.start(nightly, Nightly(day="monday"), unique_key=7)  # wrong
    await app.start(count_rows, path="a")  # wrong
    number: int = await (await app.start(Article, Topic(topic="tides")))  # wrong
    print(number, Wrong(timeuot=timedelta(0)))  # wrong
    Article().run(start_event=Other(number=3))  # wrong


def plain_runs() -> None:
    """The same from plain code."""
    app.start_sync(Article, Other(number=3))  # wrong
    app.start_sync(Article, Topic(topic="tides"), delya="10m")  # wrong
    app.start_sync(nightly, Nightly(dya="monday"))  # wrong
    app.jobs.batch_sync([send_receipt.call(order_id=7)], on_sucess=count_rows)  # wrong


async def together(tx: Atomic, plain: AtomicSync) -> None:
    """Wrong calls in one transaction."""
    await tx.enqueue(send_receipt.call(order_id=7), delya="10m")  # wrong
    await tx.enqueue_many([send_receipt.call(order_id=7)], debounce="1s")  # wrong
    await tx.start(Article, Topic(topic="tides"), delya="10m")  # wrong
    await tx.start(nightly, Topic(topic="tides"))  # wrong
    await tx.send_event(1, Topic(topic="tides"), priority=3)  # wrong
    await tx.publish("orders", {}, delay="1h")  # wrong
    await tx.submit(1, "ok", {}, delay="1h")  # wrong
    plain.enqueue(send_receipt.call(order_id=7), delya="10m")  # wrong
    plain.start(Article, Other(number=3))  # wrong
    plain.publish("orders", {}, kye="a")  # wrong


def of_a_message(ctx: MessageContext) -> None:
    """Jobs of a stream with wrong arguments and options."""
    ctx.enqueue(send_receipt.call(ordr_id=7))  # wrong
    ctx.enqueue(send_receipt.call(order_id=7), delya="10m")  # wrong
