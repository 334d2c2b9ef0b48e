"""Monitors and the clock of a test: a tick that began before the clock has moved has the time from before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from tidemill.app import App

POLL_SECONDS = 0.01
LONGEST_TICK = 1.0


async def wait_for_ticks(apps: Iterable[App], monotonic: Callable[[], float]) -> None:
    """Return when the ticks have ended that are under way now: what is fed from then on is not of them.

    A source that answers late is not waited for.
    """
    runners = [app.monitors.runner_here for app in apps]
    drivers = [driver for runner in runners if runner is not None for driver in runner.drivers.values()]
    begun = {driver: driver.ticks for driver in drivers if driver.is_ticking}
    end = monotonic() + LONGEST_TICK
    while any(driver.is_ticking and driver.ticks == ticks for driver, ticks in begun.items()) and monotonic() < end:
        await asyncio.to_thread(time.sleep, POLL_SECONDS)
