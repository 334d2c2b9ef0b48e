"""Alerts about the engine itself in one line, and a channel that is notified only if an alert is not acknowledged.

    tidemill up examples/engine_alerts.py
    tidemill monitor alerts                            # within seconds: failed-jobs of task charge
    tidemill explain --why-not late-jobs 'queue default'
    tidemill monitor backtest examples/engine_alerts.py --last 1h

Real channels are in place of the commands: Slack(url=...), PagerDuty(routing_key=..., after="10m").
"""

from tidemill import App
from tidemill.monitors import Command, engine_alerts

app = App("shop")

first = Command(argv=["sh", "-c", "echo told: \"$0\"", "{title}"], name="on_call", resolved=True)
boss = Command(argv=["sh", "-c", "echo escalated: \"$0\"", "{title}"], name="boss", after="10m")
app.monitor(engine_alerts(channels=[first, boss]))


@app.task(retry=1)
def charge(card: int) -> None:
    raise ValueError(f"card {card} is refused")


app.schedule("charges", charge.call(card=7), every="1m")
