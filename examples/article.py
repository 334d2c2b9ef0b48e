"""A durable workflow that waits for a person: written, approved or not, published.

python examples/article.py               everything in this process, then the end
tidemill up examples/article.py          # the same as a service; then, in a second terminal:
tidemill runs
tidemill send r1 Approved '{"ok": true}' --app examples/article.py
"""

import asyncio

from tidemill import App
from tidemill.flows import Context, Event, InputRequiredEvent, StartEvent, StopEvent, Workflow, step

app = App("press")


class Topic(StartEvent):
    topic: str


class Draft(Event):
    text: str


class NeedsApproval(InputRequiredEvent):
    text: str


class Approved(Event):
    ok: bool


@app.workflow
class Article(Workflow[Topic, str]):
    @step
    async def write(self, ctx: Context, ev: Topic) -> Draft:
        await ctx.store.set("topic", ev.topic)
        return Draft(text=f"All about {ev.topic}.")

    @step(num_workers=4)
    async def review(self, ctx: Context, ev: Draft) -> StopEvent:
        answer = await ctx.wait_for_event(Approved, waiter_event=NeedsApproval(text=ev.text))
        topic = await ctx.store.get("topic")
        return StopEvent(result=f"{topic}: {'published' if answer.ok else 'rejected'}")


async def main() -> None:
    async with app.running():
        run = await app.start(Article, Topic(topic="tides"))
        async for event in run.stream_events():
            if isinstance(event, NeedsApproval):
                print(f"to approve: {event.text}")
                await run.send_event(Approved(ok=True))
        print(await run)


if __name__ == "__main__":
    asyncio.run(main())
