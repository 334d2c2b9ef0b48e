"""Ask a person, save the run while it waits, and go on with the answer."""

import asyncio
import json

from workflows import Context, Workflow, step
from workflows.events import HumanResponseEvent, InputRequiredEvent, StartEvent, StopEvent


class Approval(HumanResponseEvent):
    ok: bool
    by: str


class NeedsApproval(InputRequiredEvent):
    text: str


class Publishing(Workflow):
    @step
    async def review(self, ctx: Context, ev: StartEvent) -> StopEvent:
        await ctx.store.set("draft", ev.draft)
        answer = await ctx.wait_for_event(
            Approval, waiter_event=NeedsApproval(text=ev.draft), requirements={"by": "editor"}
        )
        verdict = "published" if answer.ok else "rejected"
        return StopEvent(result=f"{await ctx.store.get('draft')!r} {verdict} by {answer.by}")


async def main() -> None:
    flow = Publishing(timeout=10)

    handler = flow.run(draft="On tides")
    async for event in handler.stream_events():
        if isinstance(event, NeedsApproval):
            print("asked about:", event.text)
            await handler.send_event(Approval(ok=False, by="passer-by"))
            await handler.send_event(Approval(ok=True, by="editor"))
    print(await handler)

    handler = flow.run(draft="On mills")
    async for event in handler.stream_events():
        if isinstance(event, NeedsApproval):
            break
    saved = json.dumps(handler.ctx.to_dict())
    await handler.cancel_run()
    print("put away:", handler.is_done())

    handler = flow.run(ctx=Context.from_dict(flow, json.loads(saved)))
    await asyncio.sleep(0.01)
    await handler.send_event(Approval(ok=False, by="editor"))
    print(await handler)


if __name__ == "__main__":
    asyncio.run(main())
