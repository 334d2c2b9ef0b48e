"""Model affinity: how often a worker with memory for one model loads one, beside strict first come, first served.

Three models, jobs that need them in turn, all enqueued at once, one worker that runs one job at a time. Both sides
are our worker and our cache; `fifo` has no patience (`model_patience=0`) and so takes jobs strictly in order. Every
job checks that it was given the right model. A load and a job take what `Plan` says, so the rates mean little; the
number of loads is what counts, and that no job waits longer than the worker promises: its patience, once per model.
"""

import asyncio
import time

import msgspec

from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server
from benchmarks.shared.schema import install_schema
from tidemill import App, ModelSpec, current_job
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.roles import jobs_role

MODELS = ("small", "medium", "large")

COUNT_LEFT = "SELECT count(*) FROM tidemill.job"
#: How many succeeded, and the longest that one waited after the worker had begun.
HOW_THEY_WENT = """
SELECT count(*) FILTER (WHERE state = 'succeeded'),
       extract(epoch FROM max(started_at) - min(started_at))::float8
FROM tidemill.job_history
"""


class Plan(msgspec.Struct, frozen=True):
    """How much there is to do, and how long each part of it takes."""

    jobs: int = 300
    load_s: float = 0.02
    job_s: float = 0.002
    patience_s: float = 1.0
    timeout_s: float = 120.0

    @property
    def bound_s(self) -> float:
        """The longest that a job may wait."""
        return self.patience_s * len(MODELS)


PLAN = Plan()


class Seen(msgspec.Struct):
    """What one side did."""

    loads: int = 0
    longest_wait_s: float = 0.0
    took_s: float = 0.0


def rows(server: Server, plan: Plan = PLAN) -> list[report.Row]:
    """Run both sides and compare them."""
    with server.database("models") as dsn:
        ours = asyncio.run(_drain(dsn, plan, patience=plan.patience_s))
    with server.database("models") as dsn:
        fifo = asyncio.run(_drain(dsn, plan, patience=0.0))
    for name, seen in (("ours", ours), ("fifo", fifo)):
        say(f"models, {name}: {seen.loads} loads, longest wait {seen.longest_wait_s:.2f} s, took {seen.took_s:.2f} s")
    unit = f"loads for {plan.jobs} jobs"
    return [
        report.compare("model_loads", unit, ours.loads, "fifo", fifo.loads, less_is_better=True),
        report.compare(
            "model_wait", "s, longest", ours.longest_wait_s, "fifo", fifo.longest_wait_s, less_is_better=True
        ),
        report.compare("model_wait", "s, longest", ours.longest_wait_s, "bound", plan.bound_s, less_is_better=True),
    ]


async def _drain(dsn: str, plan: Plan, *, patience: float) -> Seen:
    seen = Seen()
    in_memory: list[str] = []

    def load(name: str) -> str:
        time.sleep(plan.load_s)
        in_memory.append(name)
        if in_memory != [name]:
            raise RuntimeError(f"{in_memory} are in memory, which has room for one")
        seen.loads += 1
        return name

    def spec(name: str) -> ModelSpec:
        return ModelSpec(name, lambda: load(name), in_memory.remove, memory="1 GB")

    app = App(
        "bench",
        models=[spec(name) for name in MODELS],
        model_memory="1 GB",
        model_patience=patience,
        database_url=dsn,
        log_level="warning",
    )

    @app.task
    async def use(name: str) -> None:
        if current_job().model(name) != name:
            raise RuntimeError("this is another model than the job needs")
        await asyncio.sleep(plan.job_s)

    await install_schema(dsn)
    configure_logs("warning")
    async with app, app.database() as database:
        for number in range(plan.jobs):
            name = MODELS[number % len(MODELS)]
            await app.enqueue("use", name=name, required_model=name)
        worker = jobs_role(app.declarations, ["default"], max_concurrency=1)
        began = time.monotonic()
        working = asyncio.create_task(worker.run())
        try:
            async with asyncio.timeout(plan.timeout_s):
                while (await database.fetch(COUNT_LEFT))[0][0]:
                    await asyncio.sleep(0.02)
        finally:
            seen.took_s = time.monotonic() - began
            worker.stop()
            await working
        [(succeeded, longest)] = await database.fetch(HOW_THEY_WENT)
    if succeeded != plan.jobs:
        raise RuntimeError(f"{plan.jobs - succeeded} of {plan.jobs} jobs did not succeed")
    seen.longest_wait_s = longest
    return seen
