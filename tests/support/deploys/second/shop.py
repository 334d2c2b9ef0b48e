"""The second version: a step, two events and the state have changed, and there is a step more."""

from pydantic import BaseModel

from tidemill import App
from tidemill.flows import (
    Context,
    Event,
    HumanResponseEvent,
    OlderRun,
    StartEvent,
    StopEvent,
    Workflow,
    migrate,
    renamed_from,
    step,
)

app = App("test")


class Placed(StartEvent):
    number: int


@renamed_from("Priced")
class Costed(Event):
    number: int
    cents: int


class Logged(Event):
    pass


@renamed_from("Approval")
class Signature(HumanResponseEvent):
    ok: bool


class OrderState(BaseModel):
    cents: int = 0
    visits: int = 0


class Order(Workflow):
    @step
    async def price(self, ctx: Context[OrderState], ev: Placed) -> Costed:
        await ctx.store.set("cents", ev.number * 150)
        return Costed(number=ev.number, cents=ev.number * 150)

    @step
    async def note(self, ev: Costed) -> None:
        """Also takes what the first version had only for the approval."""

    @step(renamed_from="approve")
    async def sign_off(self, ctx: Context[OrderState], ev: Costed) -> StopEvent:
        async with ctx.store.edit_state() as state:
            state.visits += 1
        answer = await ctx.wait_for_event(Signature)
        state = await ctx.store.get_state()
        return StopEvent(result=["second", ev.cents, state.cents, state.visits, answer.ok])

    @migrate
    def to_cents(self, run: OlderRun) -> OlderRun:
        if "euros" in run.state:
            run.state["cents"] = round(run.state.pop("euros") * 100)
        for event in run.events:
            if "euros" in event.fields:
                event.fields["cents"] = round(event.fields.pop("euros") * 100)
        return run


class Parcel(Workflow):
    @step
    async def pack(self, ev: StartEvent) -> Costed:
        return Costed(number=1, cents=100)

    @step
    async def ship(self, ctx: Context, ev: Costed) -> StopEvent:
        await ctx.wait_for_event(Signature)
        return StopEvent(result="second")

    @migrate
    def to_cents(self, run: OlderRun) -> OlderRun:
        for event in run.events:
            if "euros" in event.fields:
                event.fields["cents"] = round(event.fields.pop("euros") * 100)
        return run


class Quick(Workflow):
    @step
    async def only(self, ev: StartEvent) -> Logged:
        return Logged()

    @step
    async def more(self, ev: Logged) -> StopEvent:
        return StopEvent(result="second")


for each in (Order, Parcel, Quick):
    app.workflow(each, timeout=None)


@app.task(queue="mail")
async def send(to: str, urgent: bool = False) -> str:
    return f"second {to} {urgent}"


@app.task(queue="old")
async def forgotten(number: int) -> int:
    return number


app.schedule("nightly", forgotten.call(number=1), cron="0 3 * * *")
app.schedule("hourly", forgotten.call(number=2), cron="0 * * * *")
