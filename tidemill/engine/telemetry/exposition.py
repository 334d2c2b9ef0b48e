"""The content of `/metrics`: the totals and the newest samples of all hosts, in Prometheus format.

Every endpoint of a database serves the same content, so scrape one of them. See docs/telemetry.md for the names.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from tidemill.core.codec import decode
from tidemill.engine.telemetry.hosts import HostSample
from tidemill.engine.telemetry.metric_families import counter, counters, gauge, histogram
from tidemill.engine.telemetry.stream_metrics import stream_metrics
from tidemill.store.database import Database
from tidemill.store.telemetry.history import BOUNDS
from tidemill.store.telemetry.hosts import Totals, read_totals
from tidemill.version import VERSION

FRESH = 1.0
COST_RATIO = 20  # reads take at most a twentieth of the time, whatever their size

_COUNTERS = (
    ("ended", "tidemill_job_attempts", "Attempts at jobs that ended, by outcome.", ("queue", "task", "outcome")),
    ("lease_reclaims", "tidemill_lease_reclaims", "Workers whose lease lapsed and was reclaimed.", ()),
    ("jobs_reclaimed", "tidemill_jobs_reclaimed", "Jobs that were requeued because their worker was lost.", ()),
    ("watchdog_trips", "tidemill_watchdog_trips", "Jobs that the watchdog ended, by the exceeded limit.", ("limit",)),
)
_HISTOGRAMS = (
    ("wait", "tidemill_job_wait_seconds", "Time from when a job was due until a worker claimed it.", ("queue",)),
    ("run", "tidemill_job_run_seconds", "How long attempts took.", ("queue", "task")),
)


class Exposition:
    """The text of `/metrics` for one database; cached and read again after a while."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: CollectorRegistry | None = None
        self._good_until = 0.0

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """The text in a format that the client accepts, and its content type."""
        write, content_type = choose_encoder(accept)
        return write(await self._registry()), content_type

    async def _registry(self) -> CollectorRegistry:
        began = time.monotonic()
        if self._known is None or began >= self._good_until:
            totals = await read_totals(self._database)
            now = time.monotonic()
            self._known = registry_of(totals, took=now - began)
            self._good_until = now + max(FRESH, (now - began) * COST_RATIO)
        return self._known


class _TotalsCollector(Collector):
    """A prometheus_client collector of the totals."""

    def __init__(self, totals: Totals, took: float) -> None:
        self._totals = totals
        self._took = took

    def collect(self) -> Iterator[Metric]:
        yield gauge("tidemill_info", "This version of Tidemill.", ("version",), [((VERSION,), 1)])
        yield gauge("tidemill_scrape_seconds", "How long the database took to answer.", (), [((), self._took)])
        yield from queue_metrics(self._totals)
        yield from batch_metrics(self._totals)
        yield from count_metrics(self._totals)
        yield from process_metrics(self._totals)
        yield from host_metrics(self._totals)
        yield from stream_metrics(self._totals.streams, self._totals.counts)


def registry_of(totals: Totals, *, took: float = 0.0) -> CollectorRegistry:
    """A registry of everything in these totals."""
    registry = CollectorRegistry()
    registry.register(_TotalsCollector(totals, took))
    return registry


WORKABLE = ("waiting", "no_worker", "running")


def queue_metrics(totals: Totals) -> Iterator[Metric]:
    """Waiting jobs, and workers."""
    rows = totals.queues
    states = ("waiting", "scheduled", "throttled", "no_worker", "running")
    yield gauge(
        "tidemill_queue_jobs",
        "Unfinished jobs.",
        ("queue", "state"),
        [((row["queue"], state), row[state]) for row in rows for state in states],
    )
    yield gauge(
        "tidemill_queue_oldest_waiting_seconds",
        "How long the oldest job that could start has been due.",
        ("queue",),
        [((row["queue"],), row["oldest"]) for row in rows],
    )
    yield gauge(
        "tidemill_queue_workers", "Living workers.", ("queue",), [((row["queue"],), row["workers"]) for row in rows]
    )
    yield gauge(
        "tidemill_queue_desired_workers",
        "How many workers could run everything that is due or running at once; for autoscalers.",
        ("queue",),
        [((row["queue"],), math.ceil(sum(row[state] for state in WORKABLE) / row["slots"])) for row in rows],
    )
    values = [((state,), totals.workers[state]) for state in ("alive", "silent")]
    yield gauge("tidemill_workers", "Worker processes that have not ended.", ("state",), values)
    lost = totals.workers["lost_threads"]
    yield gauge("tidemill_lost_threads", "Threads that did not come back at their timeout.", (), [((), lost)])


def batch_metrics(totals: Totals) -> Iterator[Metric]:
    """Batches that have not ended."""
    if totals.batches is not None:
        for name, column, about in (
            ("tidemill_batches_unfinished", "batches", "Batches that have not ended."),
            ("tidemill_batch_jobs_unfinished", "jobs", "Jobs of batches that have not ended."),
            ("tidemill_batch_oldest_seconds", "oldest", "How long ago the oldest unfinished batch was made."),
        ):
            yield gauge(name, about, (), [((), totals.batches[column])])


def count_metrics(totals: Totals) -> Iterator[Metric]:
    """Counts of ended work, and durations."""
    yield from counters(_COUNTERS, totals.counts)
    for name, shown, about, labels in _HISTOGRAMS:
        yield histogram(name, shown, about, labels, map(str, BOUNDS), totals.counts)


def process_metrics(totals: Totals) -> Iterator[Metric]:
    """The gauges of each of our processes."""
    lags: list[tuple[tuple[str, ...], float]] = []
    models: list[tuple[tuple[str, ...], dict[str, Any]]] = []
    for row in totals.processes:
        gauges = decode(row["gauges"], dict[str, Any])
        who = (row["host"], str(row["pid"]))
        lags.append(((*who, row["role"]), gauges.get("lag", 0.0)))
        models += [((*who, figures["name"]), figures) for figures in gauges.get("models") or ()]
    yield gauge("tidemill_loop_lag_seconds", "How late the event loop was at worst.", ("host", "pid", "role"), lags)
    labels = ("host", "pid", "model")
    yield gauge(
        "tidemill_model_memory_bytes",
        "Models in memory; 0 for those that are not.",
        labels,
        [(key, figures["memory"] if figures.get("phase") == "loaded" else 0) for key, figures in models],
    )
    for field, about in (
        ("loads", "Times that a model was loaded."),
        ("hits", "Uses that found their model loaded."),
        ("evictions", "Times that a model was evicted."),
        ("failures", "Loads that failed."),
    ):
        yield counter(
            f"tidemill_model_{field}", about, labels, [(key, figures.get(field, 0)) for key, figures in models]
        )


def host_metrics(totals: Totals) -> Iterator[Metric]:
    """The resource use of hosts, and our share of it."""
    samples = [(row["host"], decode(row["data"], HostSample)) for row in totals.hosts]
    for name, about, field in (
        ("cpu_cores", "CPU in use, in cores.", "cpu"),
        ("cpu_cores_total", "Cores.", "cores"),
        ("load1", "Load average of a minute.", "load"),
        ("memory_bytes", "Memory in use.", "memory"),
        ("memory_total_bytes", "Memory.", "memory_total"),
        ("swap_bytes", "Swap in use.", "swap"),
        ("disk_bytes", "Disk in use, where Tidemill runs.", "disk"),
        ("disk_total_bytes", "Disk, where Tidemill runs.", "disk_total"),
    ):
        values = [((host,), getattr(sample, field)) for host, sample in samples]
        yield gauge(f"tidemill_host_{name}", about, ("host",), values)
    for what, about, part in (
        ("ours", "of our processes with their children", "ours"),
        ("cgroup", "of our control groups", "group"),
    ):
        parts = [((host,), used) for host, sample in samples if (used := getattr(sample, part)) is not None]
        yield gauge(f"tidemill_{what}_cpu_cores", f"CPU {about}, in cores.", ("host",), [(k, u.cpu) for k, u in parts])
        yield gauge(f"tidemill_{what}_memory_bytes", f"Memory {about}.", ("host",), [(k, u.memory) for k, u in parts])
    yield from _limit_metrics(samples)
    for name, about, field in (("cpu_cores", "CPU", "cpu"), ("memory_bytes", "Memory", "memory")):
        values = [
            ((host, str(each.pid)), getattr(each, field)) for host, sample in samples for each in sample.processes
        ]
        yield gauge(f"tidemill_process_{name}", f"{about} of a process with its children.", ("host", "pid"), values)
    for name, about, field in (
        ("busy_ratio", "The share of time that a GPU was busy.", "busy"),
        ("memory_bytes", "GPU memory in use.", "memory"),
        ("memory_total_bytes", "GPU memory.", "memory_total"),
        ("temperature_celsius", "The temperature of a GPU.", "temperature"),
        ("power_watts", "The power draw of a GPU.", "power"),
    ):
        values = [
            ((host, str(gpu.index), gpu.name), getattr(gpu, field))
            for host, sample in samples
            for gpu in sample.gpus
            if getattr(gpu, field) is not None
        ]
        yield gauge(f"tidemill_gpu_{name}", about, ("host", "gpu", "model"), values)


def _limit_metrics(samples: list[tuple[str, HostSample]]) -> Iterator[Metric]:
    groups = [((host,), sample.group) for host, sample in samples if sample.group is not None]
    for name, about, field in (
        ("cpu_limit_cores", "CPU that our control groups may use, in cores.", "cpu_limit"),
        ("memory_limit_bytes", "Memory that our control groups may use.", "memory_limit"),
        ("throttled_ratio", "The share of time for which our control groups were throttled.", "throttled"),
    ):
        values = [(key, getattr(group, field)) for key, group in groups if getattr(group, field) is not None]
        yield gauge(f"tidemill_cgroup_{name}", about, ("host",), values)
