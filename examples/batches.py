"""Jobs that are followed as one: results in order, what follows from the end, batches filled in steps and in flows."""

import asyncio

from tidemill import App, BatchFailedError
from tidemill.flows import Context, StartEvent, StopEvent, Workflow, step

app = App("batches")
broken = {3}


@app.task
async def resize(picture: int) -> str:
    if picture in broken:
        raise ValueError(f"picture {picture} is broken")
    return f"{picture}.webp"


@app.task
async def publish(album: str) -> str:
    return f"{album} is published"


@app.task
async def report(batch: int, succeeded: int, failed: int) -> str:
    return f"batch {batch}: {succeeded} pictures, {failed} broken"


class Albums(StartEvent):
    sizes: list[int]


@app.workflow
class CountPictures(Workflow):
    @step
    async def count(self, ctx: Context, ev: Albums) -> StopEvent:
        made = [await ctx.gather_jobs(*(resize.call(10 + n) for n in range(size))) for size in ev.sizes]
        return StopEvent(result=[len(each) for each in made])


async def main() -> None:
    async with app.running():
        album = await app.batch(
            (resize.call(picture) for picture in range(5)),
            name="holidays",
            on_success=publish.call("holidays"),
            on_complete=report,
        )
        try:
            await album
        except BatchFailedError as error:
            view = error.batch
            print(f"{view.name}: {view.succeeded} of {view.total} succeeded, {view.failed} failed")

        parts = await app.batch(name="city", keep_open=True)
        for first in (20, 30):
            await parts.add(resize.call(first + n) for n in range(2))
        await parts.close()
        print(f"city: {await parts}")

        run = await app.start(CountPictures, Albums(sizes=[2, 3]))
        print(f"pictures of each album: {await run}")


if __name__ == "__main__":
    asyncio.run(main())
