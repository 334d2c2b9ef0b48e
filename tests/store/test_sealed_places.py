"""With `App(codec="encrypt")`, no place that a payload goes through keeps it in plain text."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.store.test_payload_codec import found_in_plain
from tests.support.receiver import receiver
from tests.support.sealed_app import MARKER, Cargo, harbour
from tests.support.sealed_places import Chandler, declare_places
from tests.support.waiting import eventually
from tidemill.core.accounts import Caller
from tidemill.ops.admin.search import Search, search
from tidemill.ops.jobs.schedules import PutSchedule, put_schedule
from tidemill.ops.operator.local import Local
from tidemill.ops.runs.start import StartWork, start_work
from tidemill.store.access.idempotency import AnsweredError, IdempotencyKey
from tidemill.store.access.key_ring import KEYS, new_key


async def test_no_place_that_a_payload_goes_through_keeps_it_in_plain_text(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, new_key())
    with receiver(lambda request: (422, request.body)) as refusing:
        app = harbour(database_url, allow_hosts=["127.0.0.1"])
        declare_places(app, tmp_path, refusing.url)
        carry, close_books = app.declarations.tasks["carry"], app.declarations.tasks["close_books"]
        async with app.running():
            database = await app.declarations.reach()
            batch = await app.batch(
                (carry.call(text=f"{MARKER} {n}") for n in range(3)),
                on_success=close_books.call(month=MARKER),
                on_complete=close_books.call(month=MARKER),
            )
            run = await app.start(Chandler, Cargo(text=MARKER))
            await app.publish("forwarded", {"text": MARKER})
            await app.publish("puzzles", {"id": "1", "at": time.time(), "text": f"{MARKER} seen"})
            await app.publish("puzzles", {"id": "2", "at": time.time(), "text": f"{MARKER} puzzle"})
            await app.states("notes").write("inbox/{name}.txt", {"name": "written"}, MARKER)
            assert [each["carried"] for each in await batch] == [f"{MARKER} {n}" for n in range(3)]
            assert MARKER in repr(await run)
            closed = await eventually(
                lambda: database.fetch("SELECT result FROM tidemill.job_history WHERE task = 'close_books' OFFSET 1")
            )
            assert MARKER.encode() in closed[0]["result"]
            for place in PLACES:
                found = await eventually(lambda place=place: database.fetch(place))
                assert MARKER in repr([bytes(v).decode() if isinstance(v, bytes) else v for v in found[0].values()])
            ann = Caller("ann", "admin")
            local = Local(database, ann, app.declarations, key=IdempotencyKey("ann", "k", b"hash"))
            nightly = PutSchedule(name="at night", start="carry", args={"text": MARKER}, cron="0 3 * * *")
            await local.do(put_schedule, nightly)
            with pytest.raises(AnsweredError):
                await local.do(put_schedule, nightly)
            await Local(database, ann, app.declarations, key=IdempotencyKey("ann", "l", b"hash")).do(
                start_work, StartWork(name="carry", args={"text": MARKER})
            )
            assert (await Local(database, ann, app.declarations).do(search, Search(q=MARKER))).items == []
            assert await found_in_plain(database_url) == []
        assert await found_in_plain(database_url) == []
        await app.close()
        app.close_sync()


#: Where payloads come to rest, each with something in it, as a process with the keys reads it.
PLACES = (
    "SELECT error FROM tidemill.state_failure",
    "SELECT log FROM tidemill.state_failure",
    "SELECT log FROM tidemill.state_build WHERE outcome = 'failed'",
    "SELECT log FROM tidemill.state_build WHERE stage = 'shout' AND log <> ''",
    "SELECT content FROM tidemill.state_blob",
    "SELECT payload FROM tidemill.stream_outbox WHERE sink = 'away'",
    "SELECT payload FROM tidemill.dead_letter WHERE sink = 'refusing'",
    """SELECT status FROM tidemill.stream_status
       WHERE status::jsonb @? '$.sinks[*] ? (@.name == "refusing" && @.error != null)'""",
    "SELECT error FROM tidemill.monitor_problem",
    "SELECT explain FROM tidemill.alert WHERE monitor = 'riddles'",
    "SELECT errors FROM tidemill.job WHERE queue = 'notifications' AND errors IS NOT NULL",
    "SELECT on_success FROM tidemill.batch WHERE on_success IS NOT NULL",
)
