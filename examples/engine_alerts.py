"""Alerts about the engine itself in one line, for one channel, and for the next unless they are acknowledged."""

import asyncio

from tidemill import App
from tidemill.monitors import Channel, Notice, engine_alerts
from tidemill.ops.monitors.alerts import AckAlerts, GetAlert, ListAlerts, ack_alerts, get_alert, list_alerts

app = App("shop")
told = asyncio.Queue[str]()


class Print(Channel, frozen=True, kw_only=True):
    """A channel of one's own. Others are Slack(url=...), Email(...), Webhook(...), PagerDuty(routing_key=...)."""

    async def send(self, notice: Notice) -> None:
        for alert in notice.alerts:
            await told.put(f"{self.name}: {alert.trigger} of {alert.entity}")


# In earnest: after="10m", and the pauses between polls as they are.
app.monitor(engine_alerts(channels=[Print(name="on_call"), Print(name="boss", after="2s")], idle=0.2, idle_max=0.2))


@app.task(retry=1)
async def charge(card: int) -> None:
    raise ValueError(f"card {card} is refused")


async def main() -> None:
    async with app.running():
        await app.enqueue(charge.call(card=7))
        print(await told.get())
        print(await told.get())  # two seconds later, since it is not acknowledged
        (alert,) = (await app.do(list_alerts, ListAlerts(monitor="engine"))).items
        await app.do(ack_alerts, AckAlerts(ids=[alert.id]), by="ann")
        while len(history := (await app.do(get_alert, GetAlert(id=alert.id))).history) < 4:
            await asyncio.sleep(0.02)
        print(*sorted(f"{each.action} by {each.who}" for each in history), sep="\n")


if __name__ == "__main__":
    asyncio.run(main())
