"""Runs the jobs of a worker as tasks of a Ray cluster.

The worker keeps the claims, leases and outcomes; the cluster only runs functions. If the worker dies, Ray ends the
slots that it has started, and another worker claims their jobs. Ray retries nothing: every attempt is one of ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import Any

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError
from tidemill.core.limits.resources import Resources
from tidemill.engine.jobs.task import Task
from tidemill.engine.worker.context import RunningJob
from tidemill.engine.worker.isolation import ChildDied, ChildReport, MachineLost, TaskError, order_of, result_of

try:
    import ray
    from ray import exceptions
except ImportError as error:
    raise ConfigError("jobs on a Ray cluster need the extra of that name: pip install 'tidemill[ray]'") from error

from tidemill.integrations.ray.lost_nodes import LostNodes
from tidemill.integrations.ray.remote_slot import WorkerUnreachable, run_slot
from tidemill.integrations.ray.slots import ClusterSlots, SlotJob

NOT_SHIPPED = [".git", ".venv", "venv", ".tidemill", "node_modules", "__pycache__"]
WAITS_AFTER = 2.0  # Seconds after which a job says that it waits for room in the cluster.


class RayCluster:
    """A connected cluster. `most` limits how many jobs run there at once; without it, the cluster's processors do."""

    def __init__(self, most: int | None, app: str, listening: socket.socket) -> None:
        """`listening` is where slots connect to."""
        self._most = most
        self._app = app
        self._remote: Any = ray.remote(max_retries=0)(run_slot)
        self._lost = LostNodes()
        self._slots = ClusterSlots(self._start_slot, listening)

    def capacity(self) -> int:
        """How many jobs the cluster has room for now; a cluster may grow and shrink."""
        return self._most or max(1, int(ray.cluster_resources().get("CPU", 0)))

    async def run(self, task: Task[Any, Any], args: bytes, job: RunningJob) -> bytes | None:
        """Run one job in the cluster and return its result; its process is killed on cancellation."""
        needs = task.options.resources or Resources()
        # Waiting for room in the cluster, and for the application's lifespan there, does not count against its limits.
        (budget, stall), job.budget, job.stall = (job.budget, job.stall), None, None

        def tell(report: ChildReport) -> None:
            report.tell(job)
            if report.begun:
                job.budget, job.stall = budget, stall
                job.beat()

        await self._slots.open()
        work = SlotJob(encode(order_of(task, args, job)), tell)
        self._slots.submit(needs, work)
        waits = asyncio.get_running_loop().call_later(WAITS_AFTER, _say_waiting, job, work, needs)
        try:
            return result_of(await work.outcome)
        except asyncio.CancelledError:
            self._slots.cancel(needs, work)
            raise
        finally:
            waits.cancel()

    async def close(self) -> None:
        """Leave the cluster, which ends the tasks that are still running."""
        await self._slots.close()
        await asyncio.to_thread(ray.shutdown)

    def _start_slot(self, needs: Resources, address: tuple[str, int], hello: bytes) -> RaySlot:
        options = {"name": f"jobs of {self._app}: {needs}", **_needs(needs), **self._lost.elsewhere()}
        return RaySlot(self._remote.options(**options).remote(self._app, address, hello), self._lost)


class RaySlot:
    """The Ray task of a slot."""

    def __init__(self, running: Any, lost: LostNodes) -> None:
        self._running = running
        self._lost = lost

    async def ended(self) -> None:
        try:
            await _ended(self._running)
        except MachineLost as error:
            self._lost.note(error)
            raise

    def kill(self) -> None:
        ray.cancel(self._running, force=True)


def connect(address: str, source: str | None, *, most: int | None = None) -> RayCluster:
    """Connect to a cluster and ship the application's code to it; `auto` finds the cluster of this machine."""
    if source is None:
        raise ConfigError("jobs on a Ray cluster need an application in a file or module that its machines can load")
    folder, app = _code(source)
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or address  # As Ray does.
    if "://" in address:
        raise ConfigError(
            f"{address} is an address for Ray's client, whose jobs could not connect to the worker: run the worker on "
            "a machine of the cluster, with --ray auto or --ray HOST:PORT"
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(
            address=address,
            runtime_env={"working_dir": str(folder), "excludes": NOT_SHIPPED},
            namespace="tidemill",
            logging_level=logging.WARNING,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(f"the Ray cluster at {address} cannot be reached: {error}") from error
    return RayCluster(most, app, _listen())


def _code(source: str) -> tuple[Path, str]:
    """The folder that is shipped to the cluster, and the application's place in it."""
    place, colon, name = source.partition(":")
    path = Path(place)
    if path.suffix == ".py":
        return path.resolve().parent, f"{path.name}{colon}{name}"
    return Path.cwd(), source


def _needs(resources: Resources) -> dict[str, Any]:
    return {
        "num_cpus": resources.cpu,
        "num_gpus": resources.gpu,
        "memory": resources.memory or None,
        "resources": dict(resources.others) or None,
    }


def _say_waiting(job: RunningJob, work: SlotJob, needs: Resources) -> None:
    if work.slot is None:
        job.report(None, f"waits for room in the Ray cluster: it needs {needs}")


def _listen() -> socket.socket:
    """Listen at the address under which the nodes of the cluster know this machine, on a free port."""
    mine = ray.get_runtime_context().get_node_id()
    host = next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == mine)
    try:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        ray.shutdown()
        raise ConfigError(f"the worker cannot listen at {host}, its address in the Ray cluster: {error}") from error


async def _ended(running: Any) -> None:
    """Wait for the Ray task of a slot; losses and crashes there in our own words."""
    try:
        await running
    except (exceptions.NodeDiedError, exceptions.OwnerDiedError) as error:
        raise MachineLost("the machine of the Ray cluster that ran it was lost") from error
    except exceptions.WorkerCrashedError as error:
        raise ChildDied("the process of the Ray cluster that ran it died") from error
    except exceptions.OutOfMemoryError as error:
        raise ChildDied("its process was ended: its machine in the Ray cluster was out of memory") from error
    except exceptions.RayTaskError as error:
        cause = error.cause if isinstance(error.cause, BaseException) else error
        if isinstance(cause, WorkerUnreachable):
            raise MachineLost(str(cause)) from error
        # The application could not be loaded there.
        raise TaskError((type(cause).__qualname__,), f"on the Ray cluster: {cause}", str(error)) from error
