"""With `App(codec="encrypt")`, no payload of any shape lies in the database as plain text."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from tests.support.sealed_app import MARKER, Cargo, Said, Voyage, Wreck, harbour
from tests.support.waiting import eventually
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError
from tidemill.ops.jobs.jobs import GetJob, ListJobs, RetryJobs, get_job, list_jobs, retry_jobs
from tidemill.ops.operator.local import Local
from tidemill.store.access.key_ring import KEYS, new_key, read_keys
from tidemill.store.database import Database
from tidemill.store.jobs.log import AttemptLog, read_logs, write_logs
from tidemill.store.maintenance.reseal import reseal_payloads
from tidemill.store.runs.log import NewStepLog, write_step_logs


async def found_in_plain(url: str, text: str = MARKER) -> list[str]:
    """The tables that hold a text: as it is, in hexadecimal or in base64."""
    shapes = [text, text.encode().hex(), *(base64.b64encode(b"x" * n + text.encode())[4:-4].decode() for n in range(3))]
    connection = await asyncpg.connect(url)
    try:
        tables = await connection.fetch(
            "SELECT oid::regclass::text AS name FROM pg_class WHERE relkind = 'r' AND relnamespace::regnamespace::text "
            "NOT IN ('pg_catalog', 'information_schema', 'pg_toast')"
        )
        return [
            f"{table['name']}: {rows[0][0][:3000]}"
            for table in tables
            if (
                rows := await connection.fetch(
                    f"SELECT t::text FROM {table['name']} AS t WHERE t::text LIKE ANY ($1)", [f"%{s}%" for s in shapes]
                )
            )
        ]
    finally:
        await connection.close()


@pytest.fixture
async def app(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv(KEYS, new_key())
    app = harbour(database_url)
    yield app
    await app.close()
    app.close_sync()


async def test_no_payload_of_any_shape_lies_in_the_database_in_plain_text(
    app: App, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = app.declarations.tasks
    conn = await asyncpg.connect(database_url)
    async with app.running():
        done = await app.enqueue(tasks["carry"].call(text=MARKER))
        failed = await app.enqueue(tasks["fail"].call(text=MARKER))
        many = await app.enqueue_many(tasks["carry"].call(text=f"{MARKER} {n}") for n in range(3))
        keyed = await app.enqueue(tasks["carry"].call(text=MARKER), unique_key="one", tags=["t"], priority=9)
        async with conn.transaction():
            own = await app.enqueue(tasks["carry"].call(text=MARKER), conn=conn)
            run = await app.start(Voyage, Cargo(text=MARKER), conn=conn)
            await app.publish("letters", {"text": MARKER}, conn=conn)
        later = await app.enqueue(tasks["carry"].call(text=MARKER), unique_key="two", debounce="1h")
        await app.enqueue(tasks["carry"].call(text=MARKER), unique_key="two", debounce="1h")
        wreck = await app.start(Wreck, Cargo(text=MARKER))
        dag = await app.start("freight", {"text": MARKER})
        await app.publish("letters", {"text": MARKER})
        await app.publish("tides", {"id": "1", "at": 1_790_000_000, "text": MARKER})
        for job in (done, *many, keyed, own):
            assert MARKER in (await job)["carried"]
        assert (await app.wait(failed)).errors[-1]["message"] == f"no berth for {MARKER}"
        database = await app.declarations.reach()
        asked = await eventually(lambda: database.fetch("SELECT prompt FROM tidemill.run_input"))
        assert MARKER in asked[0]["prompt"]
        await run.send_event(Said(text=MARKER))
        assert await run == f"{MARKER} to {MARKER} with {MARKER}"
        with pytest.raises(Exception, match=MARKER):
            await wreck
        assert MARKER in repr(await dag)
        told = "SELECT result FROM tidemill.job_history WHERE task = 'tell'"
        assert MARKER.encode() in (await eventually(lambda: database.fetch(told)))[0]["result"]
        await eventually(lambda: database.fetch("SELECT FROM tidemill.dead_letter OFFSET 1"))
        await eventually(lambda: database.fetch("SELECT FROM tidemill.alert"))
        retried = RetryJobs(ids=[failed.id], args={"text": f"{MARKER} again"})
        await Local(database, Caller("ann", "admin"), app.declarations).do(retry_jobs, retried)
        again = "SELECT args FROM tidemill.job_history WHERE task = 'fail' AND id > $1"
        assert b"again" in (await eventually(lambda: database.fetch(again, failed.id)))[0]["args"]
        lines = msgspec.json.encode([{"text": MARKER}])
        async with database.acquire() as connection:
            await write_logs(database, connection, [AttemptLog(done.id, 1, time.time(), 0, lines)])
            await write_step_logs(database, connection, [NewStepLog(run.id, 1, "load", 1, time.time(), 0, lines)])
        assert (await read_logs(database, done.id))[0]["lines"] == lines
        assert await found_in_plain(database_url) == []
    assert later.id
    lines = "".join(capsys.readouterr()).splitlines()
    assert [line for line in lines if MARKER in line and "carries" not in line] == []
    assert await found_in_plain(database_url) == []
    await conn.close()


async def test_only_operators_read_sealed_payloads(app: App) -> None:
    tasks = app.declarations.tasks
    async with app.running():
        failed = await app.enqueue(tasks["fail"].call(text=MARKER))
        done = await app.enqueue(tasks["carry"].call(text=MARKER))
        await app.wait(failed)
        await done
    async with Database(app.settings.database(), opens=False) as database:
        viewer = Local(database, Caller("vic", "viewer"), app.declarations)
        operator = Local(database, Caller("ola", "operator"), app.declarations)
        for job in (failed, done):
            assert MARKER not in repr(await viewer.do(get_job, GetJob(id=job.id)))
            assert (await operator.do(get_job, GetJob(id=job.id))).args == {"text": MARKER}
        assert "$sealed" in repr(await viewer.do(get_job, GetJob(id=done.id)))
        whole = b"".join([piece async for piece in viewer.read_value(f"job/args/{done.id}")])
        assert MARKER.encode() not in whole
        whole = b"".join([piece async for piece in operator.read_value(f"job/args/{done.id}")])
        assert MARKER.encode() in whole
        with pytest.raises(ConfigError, match=r"seals its payloads .* nothing is found by arguments"):
            await operator.do(list_jobs, ListJobs(arg=(f"text={MARKER}",)))


async def test_keys_are_rotated_while_jobs_run(database_url: str, tmp_path: Path) -> None:
    file, old, new = tmp_path / "keys", new_key(), new_key()
    file.write_text(old)
    before = harbour(database_url, secret_key_file=str(file))
    carry = before.declarations.tasks["carry"]
    async with before.running():
        first = [await before.enqueue(carry.call(text=f"{MARKER} {n}")) for n in range(20)]
        file.write_text(f"{new}\n{old}\n")
        after = harbour(database_url, secret_key_file=str(file))
        second = [await after.enqueue(carry.call(text=f"{MARKER} {n}")) for n in range(20)]
        run = await after.start(Voyage, Cargo(text=MARKER))
        database = await after.declarations.reach()
        await eventually(lambda: database.fetch("SELECT FROM tidemill.run_input"))
        while (await reseal_payloads(database)).left:
            pass
        await run.send_event(Said(text=MARKER))
        assert await run == f"{MARKER} to {MARKER} with {MARKER}"
        for handle in (*first, *second):
            assert MARKER in (await handle)["carried"]
    while (resealed := await reseal_payloads(database)).count:
        assert not resealed.left
    file.write_text(new)
    async with Database(after.settings.database()) as only_new:
        rows = await only_new.fetch("SELECT args, result FROM tidemill.job_history WHERE task = 'carry'")
        assert len(rows) == 40
        assert all(MARKER.encode() in row["args"] and MARKER.encode() in row["result"] for row in rows)
        ticks = await only_new.fetch("SELECT data FROM tidemill.tick")
        assert any(MARKER.encode() in tick["data"] for tick in ticks)
    assert await found_in_plain(database_url) == []
    for app in (before, after):
        await app.close()
        app.close_sync()


async def test_a_process_that_only_seals_uses_the_key_that_was_put_first(database_url: str, tmp_path: Path) -> None:
    file, old, new = tmp_path / "keys", new_key(), new_key()
    file.write_text(f"{old}\n{new}\n")
    app = harbour(database_url, secret_key_file=str(file))
    carry = app.declarations.tasks["carry"]
    newest = read_keys(new, "here").newest

    async def is_used() -> bool:
        """Whether the arguments of a new job, as they are stored, name the new key."""
        handle = await app.enqueue(carry.call(text=MARKER))
        connection = await asyncpg.connect(database_url)
        stored = await connection.fetchval(f"SELECT args::text FROM tidemill.job WHERE id = {handle.id}")
        await connection.close()
        return newest in stored

    assert not await is_used()
    for text in ("not a key", f"{new}\n{old}\n"):  # The first is a file that is being written.
        file.write_text(text)
        await app.enqueue(carry.call(text=MARKER))
    await eventually(is_used)
    await app.close()
    app.close_sync()


async def test_payloads_are_compressed(database_url: str) -> None:
    text = "tide " * 5_000
    app = harbour(database_url, codec="compress")
    async with app.running():
        job = await app.enqueue(app.declarations.tasks["carry"].call(text=text))
        assert (await job)["carried"] == text
        database = await app.declarations.reach()
        sizes = (
            "SELECT octet_length(args::text) AS args, octet_length(result::text) AS result FROM tidemill.job_history"
        )
        (row,) = await database.fetch(sizes)
    assert row["args"] < 1_000
    assert row["result"] < 1_000
    await app.close()
    app.close_sync()


async def test_a_codec_that_does_not_exist_is_an_error(database_url: str) -> None:
    app = harbour(database_url, codec="json:dumps")
    with pytest.raises(ConfigError, match="codec 'json:dumps' is not encrypt, compress, or the module:name"):
        await app.enqueue(app.declarations.tasks["carry"].call(text="a"))
    await app.close()
    app.close_sync()
