"""A run whose steps are in three places: here, on a worker's queue, and in a run of its own.

    python examples/placement.py

Prints the invoice, what was written to the ledger with it, and the jobs that the run had.
"""

import asyncio

from tidemill import App
from tidemill.flows import Context, Event, StartEvent, StopEvent, Workflow, step

app = App("press")


class Words(StartEvent):
    words: int


class Order(StartEvent):
    pages: int


class Page(Event):
    number: int


class Counted(Event):
    words: int


@app.workflow
class Price(Workflow[Words, int]):
    """What so many words cost."""

    @step
    async def work_out(self, ev: Words) -> StopEvent:
        return StopEvent(result=ev.words * 3)


@app.workflow
class Invoice(Workflow[Order, str]):
    @step
    async def split(self, ev: Order) -> list[Page]:
        return [Page(number=n) for n in range(ev.pages)]

    @step(queue="reading", num_workers=8)
    async def count(self, ev: Page) -> Counted:
        return Counted(words=100 + ev.number)

    @step
    async def charge(self, ctx: Context, counted: list[Counted]) -> StopEvent:
        cents = await ctx.child(Price, words=sum(each.words for each in counted))
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO ledger VALUES ($1)", cents)
        return StopEvent(result=f"{len(counted)} pages: {cents} cents")


async def main() -> None:
    async with app.running(), app.database() as database:
        await database.fetch("DROP TABLE IF EXISTS ledger")
        await database.fetch("CREATE TABLE ledger (cents int NOT NULL)")
        run = await app.start(Invoice, Order(pages=5))
        print(await run)
        for row in await database.fetch("SELECT cents FROM ledger"):
            print("in the ledger:", row["cents"], "cents")
        jobs = await database.fetch("SELECT task FROM tidemill.job_history WHERE run_id = $1", run.id)
        print("jobs of the run:", len(jobs), "x", jobs[0]["task"])


if __name__ == "__main__":
    asyncio.run(main())
