"""What operators do with alerts of a monitor, on virtual time: acknowledge, note, silence, switch off."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.operate import list_audit
from tests.support.operate_streams import (
    ack_alerts,
    add_silence,
    label_entity,
    note_alert,
    switch_trigger,
)
from tests.support.watched import Pages, event, heat_monitor, open_triggers, triggers, watching
from tidemill.core.clock import VirtualClock
from tidemill.core.codec import decode
from tidemill.core.errors import NotFoundError
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts, show_alert, show_history


async def test_of_two_who_acknowledge_at_once_one_is_told_that_it_was_done(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
    alert = (await list_alerts(database, trigger="hot"))[0]["id"]
    done = await asyncio.gather(*(ack_alerts(database, [alert], by=who, at=1001.0) for who in ("ann", "bob", "eve")))
    assert sorted(map(len, done)) == [0, 0, 1]
    history = await show_history(database, alert)
    assert [row["action"] for row in history] == ["opened", "acknowledged"]
    assert (await show_alert(database, alert))["acked_by"] == history[1]["who"]
    with pytest.raises(NotFoundError, match="no alert 999"):
        await ack_alerts(database, [999], by="ann", at=1.0)


async def test_an_acknowledgement_races_a_resolution_and_both_hold(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        alert = (await list_alerts(database, trigger="hot"))[0]["id"]
        source.add(event(2, 1000.0, heat=0))
        clock.advance(1.0)
        await asyncio.gather(watcher.one_tick(), ack_alerts(database, [alert], by="ann", at=1000.5))
        row = await show_alert(database, alert)
        assert row["resolved_at"] is not None
        assert row["acked_by"] == "ann"
        clock.advance(3600.0)
        await watcher.one_tick()
    rows = await list_alerts(database, trigger="hot")
    assert len(rows) == 1


async def test_an_acknowledged_alert_comes_back_ten_minutes_after_and_not_before(database: Database) -> None:
    source, clock = Pages(), VirtualClock(10_000.0)
    source.add(event(1, 5000.0, heat=60))
    async with watching(database, heat_monitor(source, triggers=triggers()[:1]), clock) as watcher:
        await watcher.one_tick()
        first = (await list_alerts(database, trigger="hot"))[0]
        await ack_alerts(database, [first["id"]], by="ann", at=clock.now())
        for passed in (1.0, 300.0, 298.0):
            clock.advance(passed)
            await watcher.one_tick()
        assert len(await list_alerts(database)) == 1  # though it is older than ten minutes since long
        clock.advance(1.0)
        await watcher.one_tick()
        again, old = await list_alerts(database)
    assert old["resolution"] == "still so after its acknowledgement"
    assert (again["again_after"], again["acked_at"], again["started_at"]) == (first["id"], None, first["started_at"])


async def test_a_note_and_an_owner_stay_with_the_alert(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source)) as watcher:
        await watcher.one_tick()
    alert = (await list_alerts(database, trigger="hot"))[0]["id"]
    await note_alert(database, alert, by="ann", note="seen it", owner="bob")
    row = await show_alert(database, alert)
    assert (row["note"], row["owner"]) == ("seen it", "bob")
    await note_alert(database, alert, by="eve", note="gone")
    await ack_alerts(database, [alert], by="eve", at=1001.0, note="done", said="Ms Lee")
    with pytest.raises(NotFoundError):
        await note_alert(database, 999, by="eve", note="nobody's")
    audit = [(each["who"], each["action"], each["target"], decode(each["before"]), decode(each["after"]))
             for each in reversed(await list_audit(database))]  # fmt: skip
    assert audit == [
        ("ann", "alert.note", str(alert), {"note": None, "owner": None}, {"note": "seen it", "owner": "bob"}),
        ("eve", "alert.note", str(alert), {"note": "seen it", "owner": "bob"}, {"note": "gone", "owner": "bob"}),
        ("eve", "alert.ack", str(alert), {str(alert): {"note": "gone", "owner": "bob"}},
         {"ids": [alert], "note": "done", "said": "Ms Lee"}),
    ]  # fmt: skip


async def test_a_trigger_that_is_switched_off_resolves_its_alerts_and_on_looks_again(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, heat=60))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        await switch_trigger(database, "heat", "hot", False, by="me")
        assert await open_triggers(database) == set()
        source.add(event(2, 1000.0, heat=70))
        clock.advance(1.0)
        await watcher.one_tick()
        assert await open_triggers(database) == set()
        await switch_trigger(database, "heat", "hot", True, by="me")
        on, off = await list_audit(database, limit=2)
        assert (on["action"], decode(on["before"])) == ("monitor.trigger.on", {"trigger": "hot", "on": False})
        assert (off["action"], decode(off["before"])) == ("monitor.trigger.off", {"trigger": "hot", "on": True})
        clock.advance(1.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("a", "hot")}


async def test_an_entity_that_is_labelled_as_not_there_is_not_called_absent(database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, "a"), event(2, 999.0, "b"))
    async with watching(database, heat_monitor(source), clock) as watcher:
        await watcher.one_tick()
        await label_entity(database, "heat", "a", {"present": False}, by="me")
        clock.advance(400.0)
        await watcher.one_tick()
        assert await open_triggers(database) == {("b", "silent")}


async def test_a_silenced_alert_is_shown_as_such(database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, "press-1", heat=60), event(2, 999.0, "oven", heat=60))
    async with watching(database, heat_monitor(source)) as watcher:
        number = await add_silence(
            database, "heat", {"entity": "press-*"}, starts_at=900.0, ends_at=2000.0, by="me", comment="repairs"
        )
        await watcher.one_tick()
    assert {row["entity"]: row["silence"] for row in await list_alerts(database, trigger="hot")} == {
        "press-1": number,
        "oven": None,
    }
