"""The monitor: follows the fridge of every van, and alerts when one is warm, falls silent, or has its door open.

The readings are a topic of the PostgreSQL log, to which the vans report once a second.
"""

from tidemill.monitors import Monitor, absent, momentary, sustained
from tidemill.sources import LogSource

WARM = 8.0


class Fridge:
    """What is known of a fridge: its temperature, since when it is warm, and when its door was opened."""

    def on_event(self, state, event):
        state.celsius = event["celsius"]
        if event["celsius"] < WARM:
            state.warm_since = None
        elif state.warm_since is None:
            state.warm_since = event.at
        if event["door"] == "open":
            state.opened = [*(state.opened or []), {"id": event.id, "at": event.at}]

    def explain(self, state):
        return f"{state.celsius:.1f} °C"


fridges = Monitor(
    "fridges",
    source=LogSource("fridges"),
    entity=lambda event: event["van"],
    fold=Fridge,
    idle_max="1s",
    triggers=[
        sustained(
            "warm",
            when=lambda s, now: s.warm_since is not None,
            since=lambda s: s.warm_since,
            hold="3s",
            realert="10m",
            severity="critical",
            describe=f"warmer than {WARM:g} °C",
        ),
        momentary("door", of=lambda s: s.opened or [], describe="the door was opened on the way"),
        absent("silent", after="6s"),
    ],
)
