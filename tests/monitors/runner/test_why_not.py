"""Why a trigger has opened no alert: what was checked last, with which state, and what comes next."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operate_streams import add_to_roster, label_entity, switch_trigger
from tests.support.watched import Pages, event, heat_monitor, triggers, watching
from tidemill.core.accounts import Caller
from tidemill.core.clock import VirtualClock
from tidemill.core.errors import NotFoundError
from tidemill.monitors import sustained
from tidemill.monitors.runner.evaluate import shard_of
from tidemill.ops.explain import Explanation, WhyNot, explain_why_not
from tidemill.ops.operator.local import Local
from tidemill.store.database import Database

BEGIN = 1_767_600_000.0  # 5 January 2026, 08:00:00 UTC


async def why_not(database: Database, trigger: str, entity: str, **more: Any) -> Explanation:
    return await Local(database, Caller("me", "viewer"), None).do(
        explain_why_not, WhyNot(trigger=trigger, entity=entity, **more)
    )


async def test_the_reason_why_nothing_opened_is_told_with_state_and_timers(database: Database) -> None:
    source, clock = Pages(), VirtualClock(BEGIN)
    source.add(event(1, BEGIN - 10.0, heat=10), event(2, BEGIN - 10.0, "b", heat=60))
    held = sustained("held", when=lambda s, now: s.hot_since, hold="1h")
    bad = sustained("bad", when=lambda s, now: 1 / 0)
    async with watching(database, heat_monitor(source, triggers=[*triggers(), held, bad]), clock) as watcher:
        await watcher.one_tick()
        found = await why_not(database, "hot", "a")
        assert (found.kind, found.id, found.state) == ("trigger", "heat/hot/a", "quiet")
        text = " ".join(found.why)
        assert "was last checked at 2026-01-05 08:00:00 UTC (tick 1); 1 event of it evaluated, the last at" in text
        assert "Its condition was false at that check: `" in text
        assert "s.hot_since is not None" in text
        assert found.trigger is not None
        assert found.trigger.state["count"] == 1
        assert found.trigger.next_check_at is not None
        assert "Alert a1 has been open since" in " ".join((await why_not(database, "hot", "b")).why)
        text = " ".join((await why_not(database, "silent", "a")).why)
        assert "It is absent after 5m: at 2026-01-05 08:04:50 UTC" in text
        assert "it opens at 2026-01-05 09:00:00 UTC" in " ".join((await why_not(database, "held", "b")).why)
        assert "each is reported once, by its key" in " ".join((await why_not(database, "peak", "a")).why)
        text = " ".join((await why_not(database, "bad", "a")).why)
        assert "ZeroDivisionError" in text
        assert "Its check failed 1× in a row and is repeated at 2026-01-05 08:00:05 UTC" in text
        await label_entity(database, "heat", "a", {"present": False}, by="me")
        assert "labelled present=false" in " ".join((await why_not(database, "silent", "a")).why)
        await switch_trigger(database, "heat", "hot", False, by="me")
        found = await why_not(database, "hot", "a", monitor="heat")
        assert found.state == "off"
        assert "`tidemill monitor trigger hot on` switches it on" in found.why[0]
        await add_to_roster(database, "heat", ["c"], [shard_of("c")], backfill=None, by="me")
        text = " ".join((await why_not(database, "silent", "c")).why)
        assert "c has not been checked yet; no event of it was evaluated" in text
        with pytest.raises(NotFoundError, match="does not follow 'd'"):
            await why_not(database, "hot", "d")
        with pytest.raises(NotFoundError, match="no monitor has a trigger 'hto'; there are bad, held, hot"):
            await why_not(database, "hto", "a")
    assert "No process follows monitor heat" in " ".join((await why_not(database, "hot", "a")).why)
