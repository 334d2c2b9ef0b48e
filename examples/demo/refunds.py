"""The flow: a refund. Small ones are paid at once; for the others the run waits for the owner, durably.

While it waits it costs nothing, and it survives any restart.
"""

import asyncio
import random
from typing import Any, Literal

from tidemill.flows import Context, Event, HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent, Workflow, step

SMALL = 1_500
PATIENCE = 600.0


class RefundAsked(StartEvent):
    order_id: int
    cents: int


class Checked(Event):
    order_id: int
    cents: int


class Agreed(Event):
    order_id: int
    cents: int
    by: str


class OwnerAsked(InputRequiredEvent):
    question: str


class OwnerSaid(HumanResponseEvent):
    """What the console makes a form of."""

    response: Literal["yes", "no"]


class Refund(Workflow[RefundAsked, dict[str, Any]]):
    """Checks, asks where it must, pays."""

    @step
    async def check(self, ev: RefundAsked) -> Checked | Agreed:
        await asyncio.sleep(random.uniform(0.05, 0.3))
        if random.random() < 0.1:
            raise LookupError(f"order {ev.order_id} is not in the books")
        if ev.cents < SMALL:
            return Agreed(order_id=ev.order_id, cents=ev.cents, by="the rule for small sums")
        return Checked(order_id=ev.order_id, cents=ev.cents)

    @step
    async def ask_owner(self, ctx: Context, ev: Checked) -> Agreed | StopEvent:
        question = f"Pay {ev.cents / 100:.2f} back for order {ev.order_id}?"
        try:
            said = await ctx.wait_for_event(OwnerSaid, waiter_event=OwnerAsked(question=question), timeout=PATIENCE)
        except TimeoutError:
            return StopEvent(result={"paid": 0, "why": "the owner did not answer"})
        if said.response != "yes":
            return StopEvent(result={"paid": 0, "why": "the owner said no"})
        return Agreed(order_id=ev.order_id, cents=ev.cents, by="the owner")

    @step
    async def pay(self, ev: Agreed) -> StopEvent:
        await asyncio.sleep(random.uniform(0.05, 0.2))
        return StopEvent(result={"paid": ev.cents, "why": ev.by})
