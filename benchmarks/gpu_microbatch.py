"""Micro-batches on a real GPU, in one file that needs nothing but Tidemill and PyTorch.

    python -m benchmarks.gpu_microbatch [--messages 4000]

An engine runs an embedding plan: six layers of a transformer, as the content application's, up to 32 messages a call,
and the same plan one message a call. The vectors of both must be the same. Prints one JSON document: the device, and
messages a second in three rounds each. Without a GPU it runs on the CPU and says so; without PyTorch it says that and
exits with status 3.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import time
from typing import Any

from tidemill.sources import JsonlSource
from tidemill.streams import Batch, Plan, Stream, task
from tidemill.streams.engine.engine import Engine
from tidemill.streams.runner.link import MessageWork, ToDispatcher
from tidemill.version import VERSION

WORDS, WIDE, LAYERS, HEADS, INNER = 30_522, 384, 6, 12, 1536
LONGEST = 64
IN_FLIGHT = 128
ROUNDS = 3

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None


class Model:
    """Vectors of texts: the mean of what the last layer says of their words."""

    def __init__(self) -> None:
        torch.manual_seed(7)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        layer = torch.nn.TransformerEncoderLayer(
            WIDE, HEADS, INNER, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
        )
        self._words = torch.nn.Embedding(WORDS, WIDE).to(self.device).eval()
        self._layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(self.device).eval()

    def encode(self, texts: list[bytes]) -> list[list[float]]:
        rows = [words(text) for text in texts]
        wide = max(len(row) for row in rows)
        numbers = torch.tensor([row + [0] * (wide - len(row)) for row in rows], device=self.device)
        absent = numbers == 0
        with torch.inference_mode():
            seen = self._layers(self._words(numbers), src_key_padding_mask=absent)
            kept = (~absent).unsqueeze(-1)
            return ((seen * kept).sum(dim=1) / kept.sum(dim=1)).cpu().tolist()


def words(text: bytes) -> list[int]:
    """A made-up text of eight words and more, always the same for the same message."""
    number = int(text)
    return [1 + (number * 7919 + at * 104_729) % (WORDS - 1) for at in range(8 + number % (LONGEST - 8))]


class Together(Plan, eligibility="together"):
    async def start(self) -> None:
        self.model = Model()

    @task(batch=Batch(max_size=32, max_wait="5ms"))
    def embed(self, items: list[Any]) -> list[Any]:
        return self.model.encode([item.value for item in items])


class OneByOne(Plan, eligibility="one"):
    async def start(self) -> None:
        self.model = Model()

    @task
    def embed(self, ctx: Any) -> Any:
        return self.model.encode([ctx.value])[0]


async def rate(plan: type[Plan], messages: int) -> float:
    """Messages a second through an engine, so many in flight that batches can be full."""
    answered = 0
    news = asyncio.Event()

    def heard(frame: ToDispatcher) -> None:
        nonlocal answered
        assert not frame.answers, frame.answers
        answered += len(frame.ok)
        news.set()

    source = JsonlSource("none.jsonl", eligibilities=frozenset({str(plan.eligibility)}), decoder=bytes)
    engine = Engine(Stream("gpu", plans=[plan], sources=[source], threads=1), heard)
    await engine.start()
    sent, began = 0, 0.0
    for count in (IN_FLIGHT, messages):  # the first few are not measured: everything is warmed up then
        sent, answered, began = 0, 0, time.perf_counter()
        while answered < count:
            room = min(count - sent, IN_FLIGHT - (sent - answered))
            engine.submit([MessageWork(number, 0, b"%d" % number) for number in range(sent, sent + room)])
            sent += room
            news.clear()
            await news.wait()
    took = time.perf_counter() - began
    await engine.stop()
    return messages / took


def check() -> float:
    """How far the vectors of one message and of many are apart, at most."""
    model = Model()
    texts = [b"%d" % number for number in range(32)]
    alone = [model.encode([text])[0] for text in texts]
    return max(
        abs(one - two)
        for left, right in zip(alone, model.encode(texts), strict=True)
        for one, two in zip(left, right, strict=True)
    )


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--messages", type=int, default=4000)
    messages = parser.parse_args().messages
    if torch is None:
        sys.stderr.write("PyTorch is not installed here\n")
        raise SystemExit(3)
    apart = check()
    assert apart < 1e-2, f"the vectors differ by {apart}"
    found: dict[str, list[float]] = {"together": [], "one_by_one": []}
    for _ in range(ROUNDS):
        found["one_by_one"].append(await rate(OneByOne, messages))
        found["together"].append(await rate(Together, messages))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    told = {
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "tidemill": VERSION,
        "messages": messages,
        "apart": apart,
        **found,
        "ratio": medians["together"] / medians["one_by_one"],
    }
    print(json.dumps(told, indent=2), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
