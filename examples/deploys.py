"""A run waits while its workflow changes: a step, an event and the state have other names in the next version.

python examples/deploys.py               both versions, one after the other, each in a process of its own
"""

import asyncio
import subprocess
import sys

from pydantic import BaseModel

from tidemill import App
from tidemill.flows import (
    Context,
    Event,
    HumanResponseEvent,
    InputRequiredEvent,
    OlderRun,
    StartEvent,
    StopEvent,
    Workflow,
    migrate,
    renamed_from,
    step,
)

VERSION = sys.argv[1] if len(sys.argv) > 1 else ""

app = App("shop")


class Placed(StartEvent):
    euros: float


class Noted(Event):
    pass


class NeedsApproval(InputRequiredEvent):
    text: str


if VERSION == "first":

    class Approved(HumanResponseEvent):
        ok: bool

    class Basket(BaseModel):
        euros: float = 0.0

    class Order(Workflow[Placed, str]):  # pyright: ignore[reportRedeclaration]
        @step
        async def note(self, ctx: Context[Basket], ev: Placed) -> Noted:
            await ctx.store.set("euros", ev.euros)
            return Noted()

        @step
        async def approve(self, ctx: Context[Basket], ev: Noted) -> StopEvent:
            await ctx.wait_for_event(Approved, waiter_event=NeedsApproval(text="an order"))
            return StopEvent(result=f"approved: {await ctx.store.get('euros')} euros")

else:

    @renamed_from("Approved")
    class SignedOff(HumanResponseEvent):
        ok: bool

    class Amount(BaseModel):
        cents: int = 0

    class Order(Workflow[Placed, str]):
        @step
        async def note(self, ctx: Context[Amount], ev: Placed) -> Noted:
            await ctx.store.set("cents", round(ev.euros * 100))
            return Noted()

        @step(renamed_from="approve")
        async def sign_off(self, ctx: Context[Amount], ev: Noted) -> StopEvent:
            await ctx.wait_for_event(SignedOff, waiter_event=NeedsApproval(text="an order"))
            return StopEvent(result=f"signed off: {await ctx.store.get('cents')} cents")

        @migrate
        def to_cents(self, run: OlderRun) -> OlderRun:
            run.state["cents"] = round(run.state.pop("euros") * 100)
            return run


app.workflow(Order, timeout=None)


async def begin() -> None:
    """The first version starts a run, which waits."""
    async with app.running():
        run = await app.start("Order", euros=12.5)
        async for event in run.stream_events():
            if isinstance(event, NeedsApproval):
                print(f"to approve: {event.text}")
                return


async def finish() -> None:
    """The second version takes it over."""
    async with app.running():
        run = await app.runs.get(1)
        await run.send_event(SignedOff(ok=True))
        print(await run)


if __name__ == "__main__":
    if VERSION:
        asyncio.run(begin() if VERSION == "first" else finish())
    else:
        for each in ("first", "second"):
            subprocess.run([sys.executable, __file__, each], check=True)
