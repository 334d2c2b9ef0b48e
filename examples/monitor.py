"""A monitor: follow the readings of machines, tell when one runs hot, peaks, or falls silent."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from tidemill import App
from tidemill.monitors import Monitor, absent, momentary, sustained
from tidemill.sources import JsonlSource
from tidemill.store.monitors.alerts import ack_alerts, list_alerts

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


async def until(count: int, *triggers: str) -> list[Any]:
    """The alerts of some triggers, once there are so many."""
    database = await app.declarations.reach()
    while True:
        rows = [row for row in await list_alerts(database, "machines") if row["trigger"] in triggers]
        if len(rows) >= count:
            return sorted(rows, key=lambda row: row["trigger"])
        await asyncio.sleep(0.02)


async def main() -> None:
    async with app.running():
        read(("press", 70), ("oven", 85), ("oven", 104))
        for alert in await until(2, "hot", "peak"):
            print(f"{alert['entity']}: {alert['trigger']}")
        (hot,) = await until(1, "hot")
        await ack_alerts(await app.declarations.reach(), [hot["id"]], by="ann", at=time.time())
        read(("oven", 60))
        while any(row["resolved_at"] is None for row in await until(1, "hot")):
            await asyncio.sleep(0.02)
        print("oven: no longer hot")
        print("silent:", ", ".join(sorted({row["entity"] for row in await until(2, "silent")})))


if __name__ == "__main__":
    asyncio.run(main())
