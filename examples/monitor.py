"""A monitor: follow the readings of machines, tell when one runs hot, peaks, or falls silent."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from tidemill import App
from tidemill.monitors import Monitor, absent, momentary, sustained
from tidemill.ops.monitors.alerts import AckAlerts, Alert, ListAlerts, ack_alerts, list_alerts
from tidemill.sources import JsonlSource

app = App("workshop")
readings = Path("readings.jsonl")


class Machine:
    """What is known of a machine: since when it is hot, and its new peaks."""

    def on_event(self, state: Any, event: Any) -> None:
        if event["celsius"] < 80:
            state.hot_since = None
        elif state.hot_since is None:
            state.hot_since = event.at
        if event["celsius"] > 100:
            state.peaks = [*(state.peaks or []), {"id": event.id, "at": event.at, "celsius": event["celsius"]}]


watch = app.monitor(
    Monitor(
        "machines",
        source=JsonlSource(readings),
        entity=lambda event: event["machine"],
        fold=Machine,
        idle=0.05,
        triggers=[
            sustained("hot", when=lambda s, now: s.hot_since is not None, since=lambda s: s.hot_since, realert="10m"),
            momentary("peak", of=lambda s: s.peaks or [], severity="critical"),
            absent("silent", after="2s"),
        ],
    )
)


readings.write_text("")


def read(*values: tuple[str, float]) -> None:
    """Machines report to the file; another program would do this."""
    with readings.open("a") as file:
        for machine, celsius in values:
            id = f"{machine}-{time.time_ns()}"
            file.write(json.dumps({"id": id, "at": time.time(), "machine": machine, "celsius": celsius}) + "\n")


async def until(count: int, *triggers: str) -> list[Alert]:
    """The alerts of some triggers, once there are so many."""
    while True:
        found = await app.do(list_alerts, ListAlerts(monitor="machines"))
        alerts = [alert for alert in found.items if alert.trigger in triggers]
        if len(alerts) >= count:
            return sorted(alerts, key=lambda alert: alert.trigger)
        await asyncio.sleep(0.02)


async def main() -> None:
    async with app.running():
        read(("press", 70), ("oven", 85), ("oven", 104))
        for alert in await until(2, "hot", "peak"):
            print(f"{alert.entity}: {alert.trigger}")
        (hot,) = await until(1, "hot")
        await app.do(ack_alerts, AckAlerts(ids=[hot.id]), by="ann")
        read(("oven", 60))
        while any(alert.resolved_at is None for alert in await until(1, "hot")):
            await asyncio.sleep(0.02)
        print("oven: no longer hot")
        print("silent:", ", ".join(sorted({alert.entity for alert in await until(2, "silent")})))


if __name__ == "__main__":
    asyncio.run(main())
