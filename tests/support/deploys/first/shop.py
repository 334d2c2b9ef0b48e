"""The first version of a shop: its orders wait for an approval."""

from pydantic import BaseModel

from tidemill import App
from tidemill.flows import Context, Event, HumanResponseEvent, StartEvent, StopEvent, Workflow, step

app = App("test")


class Placed(StartEvent):
    number: int


class Priced(Event):
    number: int
    euros: float


class Approval(HumanResponseEvent):
    ok: bool


class OrderState(BaseModel):
    euros: float = 0.0
    visits: int = 0


class Order(Workflow):
    @step
    async def price(self, ctx: Context[OrderState], ev: Placed) -> Priced:
        await ctx.store.set("euros", ev.number * 1.5)
        return Priced(number=ev.number, euros=ev.number * 1.5)

    @step
    async def approve(self, ctx: Context[OrderState], ev: Priced) -> StopEvent:
        async with ctx.store.edit_state() as state:
            state.visits += 1
        answer = await ctx.wait_for_event(Approval)
        return StopEvent(result=["first", await ctx.store.get("euros"), answer.ok])


class Parcel(Workflow):
    """Has a step that the third version no longer has."""

    @step
    async def pack(self, ev: StartEvent) -> Priced:
        return Priced(number=1, euros=1.0)

    @step
    async def ship(self, ctx: Context, ev: Priced) -> StopEvent:
        await ctx.wait_for_event(Approval)
        return StopEvent(result="first")


class Quick(Workflow):
    """Says which version has run it."""

    @step
    async def only(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result="first")


for each in (Order, Parcel, Quick):
    app.workflow(each, timeout=None)


@app.task(queue="mail")
async def send(to: str) -> str:
    return f"first {to}"


@app.task(queue="old")
async def forgotten(number: int) -> int:
    return number


app.schedule("nightly", forgotten.call(number=1), cron="0 3 * * *")
