"""Send many events, work on them at the same time, collect what came of them."""

import asyncio

from workflows import Context, Workflow, step
from workflows.events import Event, StartEvent, StopEvent


class Page(Event):
    number: int
    text: str


class Counted(Event):
    number: int
    words: int


class WordCount(Workflow):
    @step
    async def split(self, ctx: Context, ev: StartEvent) -> Page | None:
        await ctx.store.set("pages", len(ev.pages))
        for number, text in enumerate(ev.pages):
            ctx.send_event(Page(number=number, text=text))
        return None

    @step(num_workers=3)
    async def count(self, ev: Page) -> Counted:
        await asyncio.sleep(0.01 * (3 - ev.number))
        return Counted(number=ev.number, words=len(ev.text.split()))

    @step
    async def add_up(self, ctx: Context, ev: Counted) -> StopEvent | None:
        expected = await ctx.store.get("pages")
        counts = ctx.collect_events(ev, [Counted] * expected)
        if counts is None:
            return None
        by_page = {one.number: one.words for one in sorted(counts, key=lambda one: one.number)}
        return StopEvent(result={"by_page": by_page, "total": sum(by_page.values())})


async def main() -> None:
    pages = ["the mill turns", "the tide comes in and the tide goes out", "flour"]
    print(await WordCount(timeout=10).run(pages=pages))


if __name__ == "__main__":
    asyncio.run(main())
