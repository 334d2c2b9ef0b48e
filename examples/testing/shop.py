"""A small shop, whose tests are in test_shop.py."""

from contextlib import contextmanager

from tidemill import INJECTED, App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step
from tidemill.monitors import Monitor, Slack, sustained
from tidemill.sources import HttpSource, LogSource
from tidemill.streams import Plan, Stream, task


class Printer:
    def print(self, label: str) -> str:
        return f"printed {label}"


@contextmanager
def lifespan(app: App):
    yield Printer()  # opened once per process


app = App("shop", lifespan=lifespan)


class MailServer:
    is_up = True


@app.task
def print_label(order_id: int, printer: Printer = INJECTED) -> str:
    return printer.print(f"label {order_id}")


@app.task(retry=app.retry(schedule=["1h", "1d"]))
async def send_receipt(order_id: int) -> str:
    if not MailServer.is_up:
        raise ConnectionError("the mail server is down")
    return f"receipt {order_id}"


@app.task(cron="0 3 * * *")
def clean_up() -> None:
    pass


def place_order(order_id: int) -> None:
    app.enqueue_sync(send_receipt.call(order_id=order_id))


class Order(StartEvent):
    id: int


class Returned(Event):
    pass


@app.workflow
class Refund(Workflow[Order, str]):
    @step
    async def wait_for_parcel(self, ctx: Context, order: Order) -> StopEvent:
        try:
            await ctx.wait_for_event(Returned, timeout=14 * 24 * 3600)
        except TimeoutError:
            return StopEvent(result="expired")
        return StopEvent(result="refunded")


class Reviews(Plan, eligibility="reviews"):
    @task
    async def judge(self, message):
        if message.value["stars"] == 1:
            await app.enqueue(send_receipt.call(order_id=message.value["order"]))


reviews = Stream("reviews", plans=[Reviews], sources=[LogSource("reviews", eligibilities={"reviews"})])
app.stream(reviews)


class Fridge:
    def on_event(self, state, event):
        state.warm_since = None if event["celsius"] < 8 else state.warm_since or event.at


fridges = app.monitor(
    Monitor(
        "fridges",
        source=HttpSource("https://shop.example.org/fridges", since="from"),
        entity=lambda event: event["fridge"],
        fold=Fridge,
        triggers=[sustained("warm", when=lambda s, now: s.warm_since is not None, hold="10m")],
        notify=[Slack(url="https://hooks.example.org/T0/B0")],
    )
)
