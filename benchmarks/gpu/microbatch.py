"""Micro-batches on a real GPU, in one file that needs nothing but Tidemill and PyTorch.

    python -m benchmarks.gpu.microbatch [--seconds 3]

An engine runs an embedding plan, six layers of a transformer as in the content application, beside a bare loop over
the same function with batches of the same size. `plain` encodes as a first version would, lists in and lists out, with
two batches in flight; `overlapped` prepares in pinned memory, has a CUDA stream per thread, copies results once, and
has three batches in flight. Prints one JSON document: the device, and messages a second of each in three alternating
rounds. Without a GPU it runs on the CPU and says so; without PyTorch it says that and exits with status 3.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from tidemill.sources import JsonlSource
from tidemill.streams import Batch, Plan, Stream, task
from tidemill.streams.engine.engine import Engine
from tidemill.streams.engine.garbage import GarbageCollector
from tidemill.streams.engine.process import SWITCH_INTERVAL
from tidemill.streams.runner.link import MessageWork, ToDispatcher
from tidemill.version import VERSION

try:
    from uvloop import run as run_loop
except ImportError:
    from asyncio import run as run_loop

WORDS, WIDE, LAYERS, HEADS, INNER = 30_522, 384, 6, 12, 1536
LONGEST = 64
ROUNDS = 3

try:
    torch: Any = importlib.import_module("torch")
except ImportError:
    torch = None


class Model:
    """Computes vectors of texts: the mean of the last layer over their words."""

    def __init__(self, dtype: str = "float32") -> None:
        torch.manual_seed(7)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self._streams = threading.local()
        layer = torch.nn.TransformerEncoderLayer(
            WIDE, HEADS, INNER, dropout=0.0, activation="gelu", batch_first=True, norm_first=False
        )
        kind = {"device": self.device, "dtype": getattr(torch, dtype)}
        self._words = torch.nn.Embedding(WORDS, WIDE).to(**kind).eval()
        self._layers = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).to(**kind).eval()

    def encode(self, texts: list[bytes]) -> list[list[float]]:
        """The vectors as lists."""
        rows = [words(text) for text in texts]
        wide = max(len(row) for row in rows)
        numbers = torch.tensor([row + [0] * (wide - len(row)) for row in rows], device=self.device)
        with torch.inference_mode():
            return self._vectors(numbers).cpu().tolist()

    def encode_overlapped(self, texts: list[bytes]) -> Any:
        """The vectors as rows of one array, computed in the CUDA stream of this thread."""
        rows = [words(text) for text in texts]
        padded = torch.zeros((len(rows), max(map(len, rows))), dtype=torch.int64, pin_memory=self.device == "cuda")
        array = padded.numpy()
        for at, row in enumerate(rows):
            array[at, : len(row)] = row
        with torch.inference_mode():
            if self.device == "cpu":
                return self._vectors(padded).float().numpy()
            if not hasattr(self._streams, "own"):
                self._streams.own = torch.cuda.Stream()
            with torch.cuda.stream(self._streams.own):
                return self._vectors(padded.to("cuda", non_blocking=True)).float().cpu().numpy()

    def _vectors(self, numbers: Any) -> Any:
        absent = numbers == 0
        seen = self._layers(self._words(numbers), src_key_padding_mask=absent)
        kept = (~absent).unsqueeze(-1)
        return (seen * kept).sum(dim=1) / kept.sum(dim=1)


def words(text: bytes) -> list[int]:
    """A made-up text of eight words and more, always the same for the same message."""
    number = int(text)
    return [1 + (number * 7919 + at * 104_729) % (WORDS - 1) for at in range(8 + number % (LONGEST - 8))]


Encode = Callable[[list[bytes]], Any]


def plan_of(encode: Encode, size: int, in_flight: int) -> type[Plan]:
    """A plan that calls the function with so many messages at once."""

    class Embedding(Plan, eligibility="embedding"):
        @task(batch=Batch(max_size=size, max_wait="5ms", max_concurrency=in_flight))
        def embed(self, items: list[Any]) -> Any:
            return encode([item.value for item in items])

    return Embedding


async def engine_rate(encode: Encode, size: int, in_flight: int, seconds: float) -> float:
    """Messages a second through an engine with a backlog of four batches."""
    answered, before_switch = 0, sys.getswitchinterval()
    news = asyncio.Event()

    def heard(frame: ToDispatcher) -> None:
        nonlocal answered
        assert not frame.answers, frame.answers
        answered += len(frame.ok)
        news.set()

    source = JsonlSource("none.jsonl", eligibilities=frozenset({"embedding"}), decoder=bytes)
    stream = Stream("gpu", plans=[plan_of(encode, size, in_flight)], sources=[source], threads=in_flight)
    engine = Engine(stream, heard)
    await engine.start()
    GarbageCollector(stream.gc_every)  # as an engine's process does
    sys.setswitchinterval(SWITCH_INTERVAL)
    sent, began, before = 0, 0.0, 0
    ends_at = float("inf")
    while time.perf_counter() < ends_at:
        if not began and answered >= 8 * size:  # The first batches are not measured: everything is warmed up then.
            began, before = time.perf_counter(), answered
            ends_at = began + seconds
        room = 4 * size - (sent - answered)
        engine.submit([MessageWork(number, 0, b"%d" % number) for number in range(sent, sent + room)])
        sent += room
        news.clear()
        await news.wait()
    rate = (answered - before) / (time.perf_counter() - began)
    while answered < sent:
        news.clear()
        await news.wait()
    await engine.stop()
    sys.setswitchinterval(before_switch)
    return rate


def bare_rate(encode: Encode, size: int, seconds: float) -> float:
    """Messages a second of a loop that does nothing but call the function."""
    done, began, ends_at = 0, 0.0, float("inf")
    for turn in range(10**9):
        if turn == 4:
            done, began = 0, time.perf_counter()
            ends_at = began + seconds
        encode([b"%d" % number for number in range(turn * size, (turn + 1) * size)])
        done += size
        if time.perf_counter() > ends_at:
            break
    return done / (time.perf_counter() - began)


def check(model: Model) -> float:
    """How far the vectors of one message and of many are apart, at most, over both functions."""
    texts = [b"%d" % number for number in range(32)]
    alone = torch.tensor([model.encode([text])[0] for text in texts])
    together = torch.tensor(model.encode(texts)), torch.from_numpy(model.encode_overlapped(texts))
    return max(float((alone - each).abs().max()) for each in together)


async def measure(seconds: float) -> dict[str, Any]:
    model, small = Model(), Model("bfloat16")
    apart = check(model)
    assert apart < 1e-2, f"the vectors differ by {apart}"
    rows: dict[str, tuple[Encode, int, int]] = {
        "plain_1": (model.encode, 1, 1),
        "plain_32": (model.encode, 32, 2),
        "plain_512": (model.encode, 512, 2),
        "overlapped_32": (model.encode_overlapped, 32, 3),
        "overlapped_512": (model.encode_overlapped, 512, 3),
        "overlapped_512_bfloat16": (small.encode_overlapped, 512, 3),
    }
    found: dict[str, Any] = {name: {"bare": [], "engine": []} for name in rows}
    for _ in range(ROUNDS):
        for name, (encode, size, in_flight) in rows.items():
            found[name]["bare"].append(round(await asyncio.to_thread(bare_rate, encode, size, seconds)))
            found[name]["engine"].append(round(await engine_rate(encode, size, in_flight, seconds)))
    for each in found.values():
        each["ratio"] = round(statistics.median(each["engine"]) / statistics.median(each["bare"]), 3)
    return {
        "device": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "tidemill": VERSION,
        "apart": apart,
        **found,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    arguments = parser.parse_args()
    if torch is None:
        sys.stderr.write("PyTorch is not installed here\n")
        raise SystemExit(3)
    print(json.dumps(run_loop(measure(arguments.seconds)), indent=2), flush=True)


if __name__ == "__main__":
    main()
