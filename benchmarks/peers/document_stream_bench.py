"""The source document's mechanism, rebuilt: three processes, Manager queues, sleeps of 10 and 100 ms, no-op plan.

`--messages N` measures how many messages a second it does at 100 in flight; `--paced N` how long a message takes from
being offered to its ack at 20 a second. Prints one JSON line.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import time
from queue import Empty
from typing import Any

MAX_IN_FLIGHT = 100
RATE = 20.0


async def engine(context, started) -> None:
    tasks, answers, shutdown = context["tasks"], context["answers"], context["shutdown"]
    started.set()
    running = set()

    async def run(task) -> None:
        answers.put({"task": task, "success": True})

    while not shutdown.is_set() or not tasks.empty():
        tasks.qsize()  # it is asked before every poll, for a log line
        try:
            task = tasks.get(block=False)
        except Empty:
            await asyncio.sleep(0.1)
            continue
        made = asyncio.create_task(run(task))
        running.add(made)
        made.add_done_callback(running.discard)


def generate(count: int, paced: bool):
    """A generator of payloads, weighted and limited as the document's are: None when there is nothing yet."""
    began, sent = time.perf_counter(), 0
    while sent < count:
        if paced and time.perf_counter() < began + sent / RATE:
            yield None
            continue
        random.choices(["GEN_0"], [1], k=1)
        sent += 1
        due = began + (sent - 1) / RATE if paced else time.perf_counter()
        yield {"id": str(sent), "payload": "x" * 100, "offered": due}


async def dispatch(context, count: int, paced: bool) -> list[float]:
    tasks, answers = context["tasks"], context["answers"]
    in_flight: set[str] = set()
    took: list[float] = []

    async def fill() -> None:
        for payload in generate(count, paced):
            if payload is None:
                await asyncio.sleep(0.01)
                continue
            while len(in_flight) >= MAX_IN_FLIGHT:
                await asyncio.sleep(0.01)
            in_flight.add(payload["id"])
            tasks.put(payload)
            tasks.qsize()  # for a log line

    async def results() -> None:
        while not context["shutdown"].is_set() and len(took) < count:
            try:
                answer = answers.get(block=False)
            except Empty:
                await asyncio.sleep(0.01)
                continue
            in_flight.discard(answer["task"]["id"])
            took.append(time.perf_counter() - answer["task"]["offered"])

    await asyncio.gather(fill(), results())
    return took


def run_engine(context, started) -> None:
    asyncio.run(engine(context, started))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=0)
    parser.add_argument("--paced", type=int, default=0)
    arguments = parser.parse_args()
    manager = multiprocessing.Manager()
    context: Any = manager.dict(tasks=manager.Queue(), answers=manager.Queue(), shutdown=manager.Event())
    started = multiprocessing.Event()
    process = multiprocessing.Process(target=run_engine, args=(context, started))
    process.start()
    started.wait()
    found: dict[str, object] = {}
    if arguments.messages:
        began = time.perf_counter()
        asyncio.run(dispatch(context, arguments.messages, False))
        found["rate"] = arguments.messages / (time.perf_counter() - began)
    if arguments.paced:
        found["latencies"] = asyncio.run(dispatch(context, arguments.paced, True))
    context["shutdown"].set()
    process.join(5)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
