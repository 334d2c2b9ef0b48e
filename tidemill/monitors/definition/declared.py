"""The monitors of one application, the task that sends their notices, and the role that runs them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tidemill.core.check_given import check_kind
from tidemill.core.did_you_mean import find_declared
from tidemill.core.errors import ConfigError
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.containment.crash_record import crash_record
from tidemill.engine.jobs.task import TaskRegistry
from tidemill.engine.roles.role import Role
from tidemill.engine.settings import Settings
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.runner.notices import TASK, notify_task
from tidemill.store.database import Database

if TYPE_CHECKING:
    from tidemill.monitors.runner.runner import MonitorRunner


class Monitors(dict[str, Monitor]):
    """The monitors of an application, by name."""

    def __init__(
        self, tasks: TaskRegistry, reach: Callable[[], Awaitable[Database]], lifespan: Lifespan | None
    ) -> None:
        super().__init__()
        self._lifespan = lifespan or Lifespan()
        self._tasks = tasks
        self._reach = reach
        self.runner_here: MonitorRunner | None = None
        """What has followed them last in this process."""

    def declare(self, monitor: Monitor) -> Monitor:
        """Add a monitor. The first one with channels adds the task that sends notices."""
        check_kind(
            "app.monitor", monitor, Monitor, "a Monitor, such as Monitor('machines', source=..., entity=..., fold=...)"
        )
        if monitor.name in self:
            raise ConfigError(f"two monitors are called {monitor.name!r}: give one of them another name")
        self[monitor.name] = monitor
        monitor.fold.surround(monitor.name, self._lifespan)
        if monitor.notify and TASK not in self._tasks:
            self._tasks.add(notify_task(self._reach, self))
        return monitor

    def runner(self, database: Database, settings: Settings, **options: Any) -> Role[MonitorRunner]:
        """The role that follows them all."""
        from tidemill.monitors.runner.runner import monitor_role  # only its process needs it

        task = self._tasks.get(TASK)
        role = monitor_role(
            database,
            self,
            task,
            lease_seconds=settings.lease_seconds,
            heartbeat_seconds=min(settings.heartbeat_seconds, 1.0),
            stall_limit=settings.stall_limit,
            record=crash_record(max_losses=settings.max_losses),
            **options,
        )
        role.lifespan = self._lifespan
        self.runner_here = role.work
        return role

    def require(self, name: str | None) -> Monitor:
        """The monitor of this name, or the only one."""
        return find_declared("monitor", self, name)
