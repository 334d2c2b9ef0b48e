"""Warm models on a real GPU, in one file that needs nothing but Tidemill and PyTorch.

    python -m benchmarks.gpu.models [--jobs 300] [--megabytes 4096] [--patience 30]

Three models of that size and memory for one of them, jobs that need them in turn. Each job multiplies on the GPU and
checks the result; loading makes the weights on the host and moves them to the device. The same is done strictly in
order (`fifo`). Prints one JSON document: the device, how often models were loaded, how long loads and jobs took, how
much device memory was taken at most and how much was left when all was over. Without a GPU it runs on the CPU and says
so; without PyTorch it says that and exits with status 3.
"""

import argparse
import asyncio
import importlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tidemill import App, ModelSpec, current_job
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.roles import jobs_role
from tidemill.store.migrate import migrate
from tidemill.version import VERSION

MODELS = ("small", "medium", "large")
COUNT = "SELECT count(*), count(*) FILTER (WHERE state <> 'succeeded') FROM tidemill.job_history"


class Device:
    """Where the models live."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.name = "cuda" if torch.cuda.is_available() else "cpu"

    def describe(self) -> dict[str, Any]:
        cuda = self.torch.cuda
        about: dict[str, Any] = {"device": self.name, "torch": self.torch.__version__}
        if self.name == "cuda":
            properties = cuda.get_device_properties(0)
            about |= {"gpu": properties.name, "gpu_memory_bytes": properties.total_memory}
        return about

    def taken(self, *, most: bool = False) -> int:
        """Bytes that PyTorch has reserved on the device, now or at most since the last reset."""
        if self.name == "cpu":
            return 0
        return self.torch.cuda.max_memory_reserved() if most else self.torch.cuda.memory_reserved()

    def forget(self) -> None:
        if self.name == "cuda":
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()

    def begin(self) -> None:
        self.forget()
        if self.name == "cuda":
            self.torch.cuda.reset_peak_memory_stats()


class Weights:
    """A model: square layers whose product with ones is known."""

    def __init__(self, device: Device, megabytes: int, number: int) -> None:
        torch, side = device.torch, 2048
        layers = max(1, megabytes * 10**6 // (side * side * 4))
        self.factor = number + 1
        self.layers = [
            torch.full((side, side), self.factor / side, dtype=torch.float32).to(device.name) for _ in range(layers)
        ]
        self.ones = torch.ones((side, 1), device=device.name)
        device.forget()

    def run(self) -> float:
        """Every layer once; each gives the model's own factor."""
        return float(sum((layer @ self.ones).mean() for layer in self.layers) / len(self.layers))


async def drain(device: Device, arguments: argparse.Namespace, *, patience: float) -> dict[str, Any]:
    """All jobs with one worker; what that took."""
    device.begin()
    job_seconds: list[float] = []

    def spec(number: int, name: str) -> ModelSpec:
        def unload(model: Weights) -> None:
            model.layers.clear()
            del model.ones
            device.forget()

        load: Callable[[], Weights] = lambda: Weights(device, arguments.megabytes, number)  # noqa: E731
        return ModelSpec(name, load, unload, f"{arguments.megabytes} MB", gpu=True)

    with tempfile.TemporaryDirectory() as directory:
        app = App(
            "gpu",
            models=[spec(number, name) for number, name in enumerate(MODELS)],
            model_memory=f"{arguments.megabytes * 3 // 2} MB",
            model_patience=patience,
            directory=directory,
            log_level="warning",
        )

        @app.task(queue="gpu", required_model=MODELS[0])
        def use(name: str) -> float:
            began = time.perf_counter()
            model = current_job().model(name)
            result = model.run()
            job_seconds.append(time.perf_counter() - began)
            if abs(result - model.factor) > 1e-3:
                raise ValueError(f"{name} gave {result} and not {model.factor}")
            return result

        async with app.database() as database:
            await migrate(database)
            async with app:
                for number in range(arguments.jobs):
                    name = MODELS[number % len(MODELS)]
                    await app.enqueue(use.call(name), required_model=name)
            worker = jobs_role(app.declarations, ["gpu"])
            began = time.monotonic()
            working = asyncio.create_task(worker.run())
            try:
                async with asyncio.timeout(arguments.timeout):
                    while (await database.fetch(COUNT))[0][0] < arguments.jobs:
                        await asyncio.sleep(0.05)
            finally:
                took = time.monotonic() - began
                worker.stop()
                await working
            [(_, failed)] = await database.fetch(COUNT)
    assert worker.work.models is not None
    figures = worker.work.models.figures()
    loads = sum(each.loads for each in figures)
    return {
        "jobs": arguments.jobs,
        "failed": failed,
        "max_concurrency": worker.work.settings.max_concurrency,
        "loads": loads,
        "hits": sum(each.hits for each in figures),
        "evictions": sum(each.evictions for each in figures),
        "seconds": round(took, 3),
        "seconds_per_load": round(sum(each.load_seconds for each in figures) / loads, 4),
        "ms_per_job": round(statistics.median(job_seconds) * 1000, 3),
        "most_bytes_on_device": device.taken(most=True),
        "bytes_left_on_device": device.taken(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.models", description=__doc__)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--megabytes", type=int, default=4096, help="the size of each model")
    parser.add_argument("--patience", type=float, default=30.0)
    parser.add_argument("--timeout", type=float, default=240.0, help="seconds for each of the two runs")
    arguments = parser.parse_args()
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        print(json.dumps({"error": f"PyTorch cannot be imported: {error}"}))
        return 3
    configure_logs("warning")
    device = Device(torch)
    report = {
        **device.describe(),
        "python": sys.version.split()[0],
        "tidemill": VERSION,
        "model_bytes": arguments.megabytes * 10**6,
        "ours": asyncio.run(drain(device, arguments, patience=arguments.patience)),
        "fifo": asyncio.run(drain(device, arguments, patience=0.0)),
    }
    report["loads_of_fifo"] = round(report["ours"]["loads"] / report["fifo"]["loads"], 4)
    print(json.dumps(report, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
