import pytest
from tests.invariants.test_monitor_crashes import *
import tests.invariants.test_monitor_crashes as m
async def test_dbg(database_url, tmp_path):
    try:
        print(await m.live_through(database_url, tmp_path/"k", "drain:2"))
    except AssertionError as e:
        async with Database(DatabaseSettings(url=database_url)) as db:
            print(dict(await db.fetchrow("select * from tidemill.monitor")))
            for r in await db.fetch("select entity,head,folded,due_at,last_at,problem from tidemill.monitor_entity"): print(dict(r))
            for r in await db.fetch("select * from tidemill.monitor_problem"): print(dict(r))
            for r in await db.fetch("select * from tidemill.monitor_tick"): print(dict(r))
            for r in await db.fetch("select * from tidemill.worker"): print(dict(r))
        raise
