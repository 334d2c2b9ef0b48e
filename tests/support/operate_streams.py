"""Changes that an operator makes to streams, monitors and alerts, each in a transaction of its own.

The arguments are those of the store's functions, with the database in place of the transaction, and `by`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tests.support.operate import acting
from tidemill.store.database import Database
from tidemill.store.monitors import alerts, roster
from tidemill.store.streams import dead_letters, streams

Change = Callable[..., Awaitable[Any]]


def _by_operator(change: Change) -> Change:
    async def act(database: Database, *args: Any, by: str = "test", **more: Any) -> Any:
        return await acting(database, by, change, *args, **more)

    return act


control_stream = _by_operator(streams.set_control)
replay_dead = _by_operator(dead_letters.replay_dead)
add_to_roster = _by_operator(roster.add_to_roster)
remove_from_roster = _by_operator(roster.remove_from_roster)
label_entity = _by_operator(roster.label_entity)
reset_monitor = _by_operator(roster.reset_monitor)
set_paused = _by_operator(roster.set_paused)
switch_trigger = _by_operator(roster.switch_trigger)
start_backfill = _by_operator(roster.start_backfill)
ack_alerts = _by_operator(alerts.ack_alerts)
note_alert = _by_operator(alerts.note_alert)
add_silence = _by_operator(alerts.add_silence)
end_silence = _by_operator(alerts.end_silence)
