"""A step that is tried again, and a handler for when that was not enough."""

import asyncio

from workflows import Context, Workflow, catch_error, step
from workflows.events import Event, StartEvent, StepFailedEvent, StopEvent
from workflows.retry_policy import retry_if_exception_type, retry_policy, stop_after_attempt, wait_fixed

calls: dict[str, int] = {}


class Fetch(Event):
    url: str


class Unavailable(Exception):
    pass


class Fetching(Workflow):
    @step
    async def begin(self, ev: StartEvent) -> Fetch:
        return Fetch(url=ev.url)

    @step(
        retry_policy=retry_policy(
            retry=retry_if_exception_type(Unavailable), wait=wait_fixed(0.01), stop=stop_after_attempt(3)
        )
    )
    async def fetch(self, ctx: Context, ev: Fetch) -> StopEvent:
        calls[ev.url] = calls.get(ev.url, 0) + 1
        if ev.url == "flaky" and ctx.retry_info().retry_number < 2:
            raise Unavailable("try again")
        if ev.url == "down":
            raise Unavailable("still down")
        if ev.url == "wrong":
            raise ValueError("no such page")
        return StopEvent(result=f"page of {ev.url}")

    @catch_error(for_steps=["fetch"], max_recoveries=1)
    async def use_mirror(self, ev: StepFailedEvent) -> Fetch | StopEvent:
        print(f"  {ev.step_name} failed after {ev.attempts}: {type(ev.exception).__name__}: {ev.exception}")
        if isinstance(ev.exception, ValueError):
            return StopEvent(result="nothing")
        return Fetch(url="mirror" if ev.input_event.url == "down" else "down")


async def main() -> None:
    flow = Fetching(timeout=10)
    for url in ("fine", "flaky", "down", "wrong"):
        print(url, "->", await flow.run(url=url))
    print(dict(sorted(calls.items())))


if __name__ == "__main__":
    asyncio.run(main())
