"""Runs the jobs of a worker as tasks of a Ray cluster.

The worker keeps the claims, leases and outcomes; the cluster only runs functions. If the worker dies, Ray ends the
tasks that it has started, and another worker claims their jobs. Ray retries nothing: every attempt is one of ours.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from pathlib import Path
from typing import Any

from tidemill.core.codec import decode, encode
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

from tidemill.integrations.ray.mailbox import MailboxReader
from tidemill.integrations.ray.remote_job import RemoteEnd, run_remote_job

NOT_SHIPPED = [".git", ".venv", "venv", ".tidemill", "node_modules", "__pycache__"]
AVOIDED_S = 120.0
_NODE_ID = re.compile(r"node ID: ([0-9a-f]{56})")
WAITS_AFTER = 2.0  # Seconds after which a job says that it waits for room in the cluster.


class LostNodes:
    """The nodes that jobs were lost with: Ray goes on to place tasks there until it has missed enough heartbeats."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def note(self, error: BaseException) -> None:
        """Note the node that an error of a lost job names, if it does."""
        if isinstance(error, MachineLost) and (found := _NODE_ID.search(str(error.__cause__))) is not None:
            self._until[found[1]] = time.monotonic() + AVOIDED_S

    def elsewhere(self) -> dict[str, Any]:
        """The options of a task that runs on no such node."""
        now = time.monotonic()
        self._until = {node: until for node, until in self._until.items() if until > now}
        if not self._until:
            return {}
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(self._until)})"}}


class RayCluster:
    """A connected cluster. `most` limits how many jobs run there at once; without it, the cluster's processors do."""

    def __init__(self, most: int | None, app: str) -> None:
        self._most = most
        self._app = app
        self._remote: Any = ray.remote(max_retries=0)(run_remote_job)
        self._mailbox = MailboxReader()
        self._lost = LostNodes()

    def capacity(self) -> int:
        """How many jobs the cluster has room for now; a cluster may grow and shrink."""
        return self._most or max(1, int(ray.cluster_resources().get("CPU", 0)))

    async def run(self, task: Task[Any, Any], args: bytes, job: RunningJob) -> bytes | None:
        """Run one job in the cluster and return its result; its process is killed on cancellation."""
        needs = task.options.resources or Resources()
        # Waiting for room in the cluster does not count against the task's limits.
        limits, job.budget, job.stall = (job.budget, job.stall), None, None
        key = job.id, job.attempt

        def tell(data: bytes) -> None:
            nonlocal limits
            if limits is not None:
                (job.budget, job.stall), limits = limits, None
                job.started = time.monotonic()
                job.beat()
            decode(data, ChildReport).tell(job)

        reports = self._mailbox.open(key, tell)
        running = self._remote.options(
            name=f"{task.name}, job {job.id}, attempt {job.attempt}", **_needs(needs), **self._lost.elsewhere()
        ).remote(self._app, encode(order_of(task, args, job)), self._mailbox.name)
        waits = asyncio.get_running_loop().call_later(WAITS_AFTER, lambda: limits and _say_waiting(job, needs))
        try:
            end = decode(await _returned(running), RemoteEnd)
            await reports.wait_for(end.sent)
        except BaseException as error:
            self._lost.note(error)
            ray.cancel(running, force=True)
            raise
        finally:
            waits.cancel()
            self._mailbox.close(key)
        for report in end.reports[:-1]:
            report.tell(job)
        return result_of(end.reports[-1])

    async def close(self) -> None:
        """Leave the cluster, which ends the tasks that are still running."""
        await self._mailbox.stop()
        await asyncio.to_thread(ray.shutdown)


def connect(address: str, source: str | None, *, most: int | None = None) -> RayCluster:
    """Connect to a cluster and ship the application's code to it; `auto` finds the cluster of this machine."""
    if source is None:
        raise ConfigError("jobs on a Ray cluster need an application in a file or module that its machines can load")
    folder, app = _code(source)
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
    return RayCluster(most, app)


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


def _say_waiting(job: RunningJob, needs: Resources) -> None:
    job.report(None, f"waits for room in the Ray cluster: it needs {needs}")


async def _returned(running: Any) -> bytes:
    """What the task of a job returns; losses and crashes there in our own words."""
    try:
        return await running
    except (exceptions.NodeDiedError, exceptions.OwnerDiedError) as error:
        raise MachineLost("the machine of the Ray cluster that ran it was lost") from error
    except exceptions.WorkerCrashedError as error:
        raise ChildDied("the process of the Ray cluster that ran it died") from error
    except exceptions.OutOfMemoryError as error:
        raise ChildDied("its process was ended: its machine in the Ray cluster was out of memory") from error
    except exceptions.RayTaskError as error:  # The application could not be loaded there.
        cause = error.cause if isinstance(error.cause, BaseException) else error
        raise TaskError((type(cause).__qualname__,), f"on the Ray cluster: {cause}", str(error)) from error
