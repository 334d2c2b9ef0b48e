"""Lists that a step returns are taken up again by `list[...]` parameters: all of a batch, the first of it, or pairs."""

import asyncio
from typing import Annotated

from workflows import Workflow, step
from workflows.collect import Collect, Take
from workflows.events import Event, StartEvent, StopEvent


class Question(Event):
    text: str
    delay: float


class Answer(Event):
    text: str


class Quick(Event):
    text: str


class Complete(Event):
    texts: list[str]


class Survey(Workflow):
    @step
    async def ask(self, ev: StartEvent) -> list[Question]:
        return [Question(text=f"question {n}", delay=0.02 * n) for n in (3, 1, 2)]

    @step
    async def answer(self, ev: Question) -> Answer:
        await asyncio.sleep(ev.delay)
        return Answer(text=f"answer to {ev.text}")

    @step
    async def first(self, answers: Annotated[list[Answer], Collect(Take(1))]) -> Quick:
        return Quick(text=answers[0].text)

    @step
    async def all_of_them(self, answers: list[Answer]) -> Complete:
        return Complete(texts=[one.text for one in answers])

    @step
    async def compare(self, quick: Quick, complete: Complete) -> StopEvent:
        return StopEvent(result=(quick.text, complete.texts))


async def main() -> None:
    quick, texts = await Survey(timeout=10).run()
    print("first:", quick)
    for text in texts:
        print("then:", text)


if __name__ == "__main__":
    asyncio.run(main())
