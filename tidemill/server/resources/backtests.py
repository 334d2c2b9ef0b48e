"""Backtests for the console: one at a time and beside the server's own work, for they run the application's code."""

from __future__ import annotations

import asyncio
import threading

from tidemill.core.errors import ConfigError
from tidemill.monitors.definition.monitor import Monitor
from tidemill.monitors.view.backtest import BacktestReport, backtest
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState
from tidemill.store.database import Database

WITHIN = 60.0
LONGEST_SPAN = 92 * 86_400.0

_one = threading.Lock()


async def try_triggers(
    server_state: ServerState, watch: Monitor, since: float, until: float, names: list[str] | None
) -> BacktestReport:
    """What a monitor's triggers would have opened in a stored span."""
    if not 0 < until - since <= LONGEST_SPAN:
        raise ConfigError("the span of a backtest ends after it begins, and has no more than 92 days")
    known = {trigger.name: trigger for trigger in watch.triggers}
    for name in names or ():
        if name not in known:
            raise ConfigError(f"monitor {watch.name} has no trigger {name!r}; it has {', '.join(known)}")
    triggers = watch.triggers if names is None else tuple(known[name] for name in names)
    settings = server_state.database.settings

    async def run() -> BacktestReport:
        async with asyncio.timeout(WITHIN), Database(settings, label="tidemill server backtest") as database:
            return await backtest(database, watch, since, until, triggers=triggers)

    def alone() -> BacktestReport:
        if not _one.acquire(blocking=False):
            raise Refused(429, "another backtest is under way: try again when it is done", Retry_After="5")
        try:
            return asyncio.run(run())
        finally:
            _one.release()

    try:
        return await asyncio.to_thread(alone)
    except TimeoutError as error:
        raise Refused(
            504, f"this takes longer than {WITHIN:g} s: choose a shorter span, or use `tidemill monitor backtest`"
        ) from error
