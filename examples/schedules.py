"""Periodic work: by interval and by cron, with arguments, in a time zone."""

import asyncio

from tidemill import App
from tidemill.core.schedule import describe

app = App("clockwork")
beats = asyncio.Queue[str]()


@app.task(every="200ms", catchup="skip")
async def heartbeat() -> None:
    await beats.put("beat")


@app.task(retry=3)
async def report(team: str) -> str:
    return f"report for {team}"


app.schedule("morning-report", report.call(team="sales"), cron="30 8 * * MON-FRI", timezone="Europe/Paris")
app.schedule("night-report", report.call(team="ops"), cron="0 2 * * *", timezone="America/New_York", jitter="10m")


async def main() -> None:
    for periodic in app.declarations.schedules.values():
        print(f"{periodic.name}: {describe(periodic.spec)}")
    async with app.running():
        for _ in range(3):
            print(await asyncio.wait_for(beats.get(), timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
