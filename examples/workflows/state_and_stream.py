"""Steps that share a typed state, and tell how far they are while they work."""

import asyncio

from pydantic import BaseModel, Field
from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent


class Ledger(BaseModel):
    balance: int = 0
    entries: list[str] = Field(default_factory=list)


class Booked(Event):
    left: list[int]


class Progress(Event):
    booked: int
    balance: int


class Booking(Workflow):
    @step
    async def begin(self, ctx: Context[Ledger], ev: StartEvent) -> Booked:
        return Booked(left=list(ev.amounts))

    @step
    async def book(self, ctx: Context[Ledger], ev: Booked) -> Booked | StopEvent:
        if not ev.left:
            state = await ctx.store.get_state()
            return StopEvent(result=state.model_dump())
        amount, *left = ev.left
        try:
            async with ctx.store.edit_state() as state:
                state.entries.append(f"{amount:+d}")
                state.balance += amount
                if state.balance < 0:
                    raise ValueError(f"{amount:+d} is more than there is")
        except ValueError as error:
            print("refused:", error)
        balance = await ctx.store.get("balance")
        ctx.write_event_to_stream(Progress(booked=amount, balance=balance))
        return Booked(left=left)


async def main() -> None:
    handler = Booking(timeout=10).run(amounts=[10, -3, -20, 5])
    async for event in handler.stream_events():
        if isinstance(event, Progress):
            print(f"{event.booked:+d} -> {event.balance}")
        else:
            print(type(event).__name__)
    print(await handler)


if __name__ == "__main__":
    asyncio.run(main())
