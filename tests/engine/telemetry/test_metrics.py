"""`/metrics` over HTTP while real jobs run: the numbers must be those of the jobs."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import urllib.error
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from tests.support import eventually, finished, lapse, running, running_maintenance, running_worker, worker_process
from tests.support.ports import free_port
from tests.support.task_app import declare
from tidemill import App
from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.core.retry import Snooze
from tidemill.engine.telemetry import exposition
from tidemill.engine.telemetry.endpoint import MetricsEndpoint, serving_metrics
from tidemill.engine.telemetry.gpu import Gpu
from tidemill.engine.telemetry.hosts import GroupUsage, HostSample, ProcessUsage, Usage
from tidemill.engine.worker.threads import WorkThreads, lost_threads
from tidemill.ops.jobs.workers import ListWorkers, WorkerLine, list_workers
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.telemetry.hosts import ProcessPlace, report, write_sample

CUT_ALL_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid <> pg_backend_pid() AND datname = current_database()
"""


@pytest.fixture
def address() -> str:
    """A loopback address at which nobody listens."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(autouse=True)
def _always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exposition, "FRESH", 0.0)
    monkeypatch.setattr(exposition, "COST_RATIO", 0.0)


class Metrics:
    """What one scrape said."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def get(self, name: str, /, **labels: str) -> float:
        """The value, or what equals nothing."""
        return self.samples.get((name, tuple(sorted(labels.items()))), math.nan)

    def all(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        return {labels: value for (each, labels), value in self.samples.items() if each == name}


async def scrape(address: str) -> Metrics:
    return Metrics((await get(address, "/metrics"))[1])


async def get(address: str, path: str, *, method: str = "GET", accept: str = "") -> tuple[int, str, str]:
    """Status, text and content type."""

    def ask() -> tuple[int, str, str]:
        request = urllib.request.Request(f"http://{address}{path}", method=method, headers={"Accept": accept})
        try:
            with urllib.request.urlopen(request, timeout=150) as answer:
                return answer.status, answer.read().decode(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode(), error.headers["Content-Type"]

    return await asyncio.to_thread(ask)


async def test_the_numbers_are_those_of_the_jobs(app: App, database: Database, address: str) -> None:
    release = asyncio.Event()

    @app.task(queue="mail")
    async def send() -> None: ...

    @app.task(queue="mail", retry=app.retry(max_attempts=3, backoff="1ms"))
    async def broken() -> None:
        raise ValueError("no")

    @app.task(queue="mail", retry=app.retry(max_attempts=2))
    async def shy() -> None:
        if not release.is_set():
            raise Snooze(0.05)

    @app.task(queue="slow")
    async def slow() -> None:
        await release.wait()

    async with running_worker(app, max_concurrency=4), serving_metrics(database, address):
        await app.enqueue_many(send, [{} for _ in range(250)])
        bad = await app.enqueue(broken)
        sleeper = await app.enqueue(shy)
        await app.enqueue(send.call(), delay="1h")
        await finished(database, bad.id)
        await eventually(lambda: _succeeded(address, 250))
        await eventually(lambda: _ended(address, "broken", "failed"))
        await app.enqueue_many(slow, [{} for _ in range(6)])
        await app.enqueue_many(send, [{} for _ in range(3)], queue="nobody")
        await eventually(lambda: _runs(address, "slow"))

        now = await scrape(address)
        assert now.get("tidemill_queue_jobs", queue="mail", state="scheduled") >= 1
        assert now.get("tidemill_queue_workers", queue="mail") == 1
        assert now.get("tidemill_workers", state="alive") == 1
        assert now.get("tidemill_job_attempts_total", queue="mail", task="broken", outcome="failed") == 1
        assert now.get("tidemill_job_attempts_total", queue="mail", task="broken", outcome="retried") == 2
        assert now.get("tidemill_job_run_seconds_count", queue="mail", task="send") == 250
        assert now.get("tidemill_job_run_seconds_count", queue="mail", task="broken") == 3
        assert now.get("tidemill_job_run_seconds_bucket", queue="mail", task="send", le="+Inf") == 250
        assert now.get("tidemill_job_run_seconds_sum", queue="mail", task="send") < 60
        states = [now.get("tidemill_queue_jobs", queue="slow", state=state) for state in ("waiting", "running")]
        assert sum(states) == 6
        assert now.get("tidemill_queue_jobs", queue="nobody", state="waiting") == 3
        assert now.get("tidemill_queue_workers", queue="nobody") == 0
        assert now.get("tidemill_queue_desired_workers", queue="nobody") == 1
        assert now.get("tidemill_queue_oldest_waiting_seconds", queue="nobody") > 0
        release.set()
        await finished(database, sleeper.id)

        async def all_told() -> bool:
            later = await scrape(address)
            attempts = later.all("tidemill_job_attempts_total")
            shown = {(labels["task"], labels["outcome"]): value for labels, value in _dicts(attempts)}
            return (
                shown.get(("slow", "succeeded")) == 6
                and shown.get(("shy", "succeeded")) == 1
                and shown.get(("shy", "snoozed"), 0) >= 1
                and later.get("tidemill_queue_jobs", queue="slow", state="running") == 0
            )

        await eventually(all_told)


async def test_waiting_is_measured_from_when_a_job_was_due(app: App, database: Database, address: str) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    late = await app.enqueue(send)
    await app.enqueue_many(send, [{} for _ in range(9)])
    await database.fetch("UPDATE tidemill.job SET due_at = now() - interval '20 seconds' WHERE id = $1", late.id)
    async with running_worker(app), serving_metrics(database, address):
        await eventually(lambda: _succeeded(address, 10))
        now = await scrape(address)
    assert now.get("tidemill_job_wait_seconds_count", queue="mail") == 10
    assert now.get("tidemill_job_wait_seconds_bucket", queue="mail", le="10.0") == 9
    assert now.get("tidemill_job_wait_seconds_bucket", queue="mail", le="30.0") == 10
    assert 20 <= now.get("tidemill_job_wait_seconds_sum", queue="mail") < 60


async def test_unfinished_batches_are_shown(app: App, database: Database, address: str) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    batch = await app.batch([send.call() for _ in range(3)])
    await app.batch([send.call()], keep_open=True)
    await database.fetch("UPDATE tidemill.batch SET created_at = now() - interval '1 hour' WHERE id = $1", batch.id)
    async with serving_metrics(database, address):
        now = await scrape(address)
        assert (now.get("tidemill_batches_unfinished"), now.get("tidemill_batch_jobs_unfinished")) == (2, 4)
        assert now.get("tidemill_batch_oldest_seconds") >= 3600
        async with running_worker(app):
            await batch.wait(timeout="30s")

        async def one_is_left() -> bool:
            return (await scrape(address)).get("tidemill_batches_unfinished") == 1

        await eventually(one_is_left)


async def test_totals_outlive_the_workers_that_counted(app: App, database: Database, address: str) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    for _ in range(2):
        async with running_worker(app):
            await finished(database, (await app.enqueue(send)).id)
    async with serving_metrics(database, address):
        now = await scrape(address)
    assert now.get("tidemill_job_attempts_total", queue="mail", task="send", outcome="succeeded") == 2
    assert now.all("tidemill_loop_lag_seconds") == {}, "a worker that has ended tells nothing of itself"


async def test_two_workers_at_once_count_everything_once(app: App, database: Database, address: str) -> None:
    @app.task(queue="mail")
    async def send() -> None:
        await asyncio.sleep(0)

    async with running_worker(app), running_worker(app), serving_metrics(database, address):
        await app.enqueue_many(send, [{} for _ in range(2000)])
        await eventually(lambda: _succeeded(address, 2000))
        now = await scrape(address)
    assert now.get("tidemill_job_attempts_total", queue="mail", task="send", outcome="succeeded") == 2000


async def test_a_blocked_loop_shows_as_lag(app: App, database: Database, address: str) -> None:
    @app.task(queue="mail")
    async def block() -> None:
        time.sleep(1.0)

    async with running_worker(app), serving_metrics(database, address):
        await finished(database, (await app.enqueue(block)).id)

        async def lag() -> bool:
            lags = (await scrape(address)).all("tidemill_loop_lag_seconds")
            return any(value >= 0.4 for value in lags.values())

        await eventually(lag)


async def test_a_lost_worker_counts_as_a_reclaimed_lease(
    app: App, executions: Database, database_url: str, address: str
) -> None:
    declare(app)
    async with running_maintenance(app), serving_metrics(executions, address):
        async with worker_process(database_url, ["throttled"]) as worker:
            job = await app.enqueue("until_open", gate="never")
            await running(executions, job.id)
            worker.kill()
            await lapse(executions, worker.pid)

        async def told() -> bool:
            now = await scrape(address)
            return now.get("tidemill_lease_reclaims_total") == 1 and now.get("tidemill_jobs_reclaimed_total") == 1

        await eventually(told)


@pytest.mark.parametrize(("task", "exits"), [("over_budget", None), ("plain_over_budget", 75)])
async def test_a_broken_limit_counts_as_a_watchdog_trip(
    app: App, executions: Database, database_url: str, address: str, task: str, exits: int | None
) -> None:
    declare(app)
    async with worker_process(database_url, ["limits"]) as worker, serving_metrics(executions, address):
        job = await app.enqueue(task)
        await finished(executions, job.id)
        if exits is not None:
            assert await worker.ends() == exits

        async def told() -> bool:
            return (await scrape(address)).get("tidemill_watchdog_trips_total", limit="budget") == 1

        await eventually(told)


async def test_hosts_with_their_gpus_and_limits_are_shown(database: Database, address: str) -> None:
    sample = HostSample(
        cores=8, cpu=2.5, load=1.5, memory=10, memory_total=100, disk=5, disk_total=50, ours=Usage(1.25, 7),
        group=GroupUsage(1.5, 9, cpu_limit=2.0, memory_limit=64, throttled=0.25),
        gpus=(Gpu(0, "NVIDIA H200", 0.93, 60, 141, 61.0, 430.0), Gpu(1, "quiet")),
        processes=(ProcessUsage(77, 1.25, 7),),
    )  # fmt: skip
    await write_sample(database, "mill", "me", encode(sample), lease=60.0)
    async with serving_metrics(database, address):
        now = await scrape(address)
    assert now.get("tidemill_host_cpu_cores", host="mill") == 2.5
    assert now.get("tidemill_host_memory_total_bytes", host="mill") == 100
    assert now.get("tidemill_ours_cpu_cores", host="mill") == 1.25
    assert now.get("tidemill_cgroup_memory_bytes", host="mill") == 9
    assert now.get("tidemill_cgroup_cpu_limit_cores", host="mill") == 2.0
    assert now.get("tidemill_cgroup_throttled_ratio", host="mill") == 0.25
    assert now.get("tidemill_process_memory_bytes", host="mill", pid="77") == 7
    assert now.get("tidemill_gpu_busy_ratio", host="mill", gpu="0", model="NVIDIA H200") == 0.93
    assert len(now.all("tidemill_gpu_busy_ratio")) == 1, "what a GPU does not tell is not made up"


async def test_models_in_memory_are_shown(database: Database, address: str) -> None:
    models = [
        {"name": "minilm", "memory": 90, "phase": "loaded", "loads": 2, "hits": 40, "evictions": 1, "failures": 0},
        {"name": "large", "memory": 900, "phase": "absent", "loads": 1, "hits": 0, "evictions": 1, "failures": 0},
    ]
    await report(database, ProcessPlace("mill", 7, "worker"), {"lag": 0.0, "models": models}, {})
    async with serving_metrics(database, address):
        now = await scrape(address)
    assert now.get("tidemill_model_memory_bytes", host="mill", pid="7", model="minilm") == 90
    assert now.get("tidemill_model_memory_bytes", host="mill", pid="7", model="large") == 0
    assert now.get("tidemill_model_loads_total", host="mill", pid="7", model="minilm") == 2


async def test_labels_with_odd_characters_survive(database: Database, address: str) -> None:
    odd = 'que"ue\\ with, {signs}\tü'
    await report(database, ProcessPlace("h", 1, "worker"), {}, {("ended", (odd, "t", "succeeded")): 3})
    async with serving_metrics(database, address):
        now = await scrape(address)
    assert now.get("tidemill_job_attempts_total", queue=odd, task="t", outcome="succeeded") == 3


async def test_openmetrics_is_spoken_to_those_who_ask_for_it(database: Database, address: str) -> None:
    async with serving_metrics(database, address):
        status, text, kind = await get(address, "/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert status == 200
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")


async def test_anything_but_metrics_is_refused_politely(database: Database, address: str) -> None:
    async with serving_metrics(database, address):
        assert (await get(address, "/etc/passwd"))[0] == 404
        assert (await get(address, "/metrics", method="POST"))[0] == 405
        assert (await get(address, "/metrics", method="HEAD"))[:2] == (200, "")
        reader, writer = await asyncio.open_connection(*address.split(":"))
        writer.write(b"\x16\x03\x01 nonsense" * 10_000)
        assert await _ending(reader) == b""
        writer.close()
        assert (await get(address, "/metrics"))[0] == 200, "it still answers others"


async def test_a_database_without_a_schema_is_said_to_have_none(empty_database_url: str, address: str) -> None:
    async with Database(DatabaseSettings(url=empty_database_url)) as database, serving_metrics(database, address):
        status, text, _ = await get(address, "/metrics")
    assert (status, text) == (503, "there is no schema yet: run `tidemill db migrate` or `tidemill maintenance`\n")


async def test_a_taken_port_is_a_clear_error(database: Database, address: str) -> None:
    async with serving_metrics(database, address):
        with pytest.raises(ConfigError, match=rf"{address}: another process listens there; choose another"):
            async with serving_metrics(database, address):
                pass


async def test_a_host_that_is_not_ours_is_a_clear_error(database: Database) -> None:
    with pytest.raises(ConfigError, match=r"metrics cannot be served at 192\.0\.2\.1:9464"):
        async with MetricsEndpoint(database, "192.0.2.1:9464"):
            pass


async def test_counts_survive_the_loss_of_all_connections(app: App, database: Database, address: str) -> None:
    @app.task(queue="mail")
    async def send() -> None: ...

    async with running_worker(app), serving_metrics(database, address):
        await finished(database, (await app.enqueue(send)).id)
        await database.fetch(CUT_ALL_OTHERS)
        await finished(database, (await app.enqueue(send)).id)
        await eventually(lambda: _succeeded(address, 2))


async def _succeeded(address: str, number: int) -> bool:
    found = (await scrape(address)).all("tidemill_job_attempts_total")
    return sum(value for labels, value in found.items() if ("outcome", "succeeded") in labels) >= number


async def _ended(address: str, task: str, outcome: str) -> bool:
    now = await scrape(address)
    return now.get("tidemill_job_attempts_total", queue="mail", task=task, outcome=outcome) == 1


async def _runs(address: str, queue: str) -> bool:
    return (await scrape(address)).get("tidemill_queue_jobs", queue=queue, state="running") >= 1


def _dicts(found: dict[tuple[tuple[str, str], ...], float]) -> list[tuple[dict[str, str], float]]:
    return [(dict(labels), value) for labels, value in found.items()]


async def _ending(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 150)
    except ConnectionError:
        return b""


@pytest.mark.parametrize(("host", "warned"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_metrics_that_other_machines_can_reach_are_warned_of(
    database: Database, address: str, host: str, warned: bool
) -> None:
    with capture_logs() as lines:
        async with MetricsEndpoint(database, address.replace("127.0.0.1", host)):
            pass
    assert any(line["log_level"] == "warning" and "served without a token" in line["event"] for line in lines) == warned


async def test_threads_that_did_not_come_back_are_counted(app: App, database: Database, address: str) -> None:
    threads, may_end, others = WorkThreads(2, "test"), threading.Event(), len(lost_threads())
    try:
        async with running_worker(app, ["mail"]), serving_metrics(database, address):
            with pytest.raises(TimeoutError):
                await threads.run(may_end.wait, "step act of run 7", 0.05)
            (line,) = await eventually(lambda: _with_lost_threads(app, others + 1))
            assert "not come back" in line.trouble
            assert "step act of run 7" in line.trouble
            await eventually(lambda: _shows(address, "tidemill_lost_threads", others + 1))
            may_end.set()
            await eventually(lambda: _shows(address, "tidemill_lost_threads", others))
    finally:
        may_end.set()
        threads.close()


async def _with_lost_threads(app: App, number: int) -> list[WorkerLine]:
    found = (await app.do(list_workers, ListWorkers())).items
    return [line for line in found if line.lost_threads == number]


async def _shows(address: str, metric: str, value: float) -> bool:
    return (await scrape(address)).get(metric) == value
