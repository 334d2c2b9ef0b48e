"""A new version of the code under running work: nothing is stranded, and what does not fit says why."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support import (
    eventually,
    finished,
    lapse,
    run_worker_process,
    running_maintenance,
    value,
    worker_process,
)
from tests.support.cli import run as command
from tidemill import App
from tidemill.engine.application.load_app import load_app
from tidemill.flows.runner.run_handle import RunHandle
from tidemill.ops.operator.local import Caller, Local
from tidemill.ops.runs.migrate import ListVersions, list_versions, older_runs
from tidemill.store.database import Database
from tidemill.store.maintenance.deploy import read_only
from tidemill.store.runs.runs import show_run
from tidemill.store.transaction import Transaction

VERSIONS = Path(__file__).resolve().parents[1] / "support" / "deploys"
FIRST, SECOND, THIRD = (VERSIONS / name / "shop.py" for name in ("first", "second", "third"))


@pytest.fixture(autouse=True)
def where(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_DATABASE_URL", database_url)


def load(path: Path) -> App:
    """A version of the shop, as another process would load it."""
    sys.modules.pop("shop", None)
    return load_app(str(path))


def signature() -> Any:
    """The answer that orders wait for, in the words of the version that was loaded last."""
    shop = sys.modules["shop"]
    return shop.Signature(ok=True) if hasattr(shop, "Signature") else shop.Approval(ok=True)


async def waits(database: Database, *runs: RunHandle) -> None:
    """Return when the runs wait for an answer."""
    ids = [run.id for run in runs]
    asked = "SELECT count(DISTINCT run_id) FROM tidemill.run_input WHERE run_id = ANY ($1)"
    await eventually(lambda: _is(database, asked, ids, len(ids)))


async def _is(database: Database, statement: str, argument: Any, wanted: Any) -> bool:
    return await value(database, statement, argument) == wanted


async def in_state(database: Database, run: RunHandle, state: str) -> dict[str, Any]:
    await eventually(lambda: _is(database, "SELECT state FROM tidemill.run WHERE id = $1", run.id, state))
    return dict(await show_run(database, run.id))


async def kinds_of(database: Database, run: RunHandle) -> list[str]:
    rows = await database.fetch("SELECT data FROM tidemill.tick WHERE run_id = $1 ORDER BY seq", run.id)
    return [json.loads(row["data"])["kind"] for row in rows]


async def test_a_run_goes_on_with_renamed_steps_events_and_state_after_its_process_was_killed(
    database: Database, database_url: str
) -> None:
    first = load(FIRST)
    async with first, running_maintenance(first):
        async with run_worker_process(database_url, FIRST, idle=600) as old:
            killed, parcel = await first.start("Order", number=2), await first.start("Parcel")
            await waits(database, killed, parcel)
            old.kill()
            await lapse(database, old.pid)
        async with run_worker_process(database_url, FIRST) as old:
            released = await first.start("Order", number=4)
            await waits(database, released)
            old.terminate()
            assert await old.ends() == 0
        fresh = await first.start("Order", number=6)
        load(SECOND)
        async with run_worker_process(database_url, SECOND):
            await waits(database, fresh)
            for run in (killed, released, fresh, parcel):
                await run.send_event(signature())
            assert await killed.result(timeout=120) == ["second", 300, 300, 1, True]
            assert await released.result(timeout=120) == ["second", 600, 600, 1, True]
            assert await fresh.result(timeout=120) == ["second", 900, 900, 1, True]
            assert await parcel.result(timeout=120) == "second"
    assert (await kinds_of(database, killed)).count("migrated") == 1
    assert (await kinds_of(database, fresh)).count("migrated") == 0, "it was begun by the second version"
    assert len({(await show_run(database, run.id))["version"] for run in (killed, released, fresh)}) == 1


async def test_both_versions_side_by_side_drive_their_own_runs_and_strand_none(
    database: Database, database_url: str
) -> None:
    first = load(FIRST)
    second = load(SECOND)
    async with first, second, running_maintenance(first):
        async with run_worker_process(database_url, FIRST) as old, run_worker_process(database_url, SECOND):
            runs = [(app, await app.start("Quick")) for _ in range(10) for app in (first, second)]
            for app, run in runs:
                assert await run.result(timeout=120) == ("first" if app is first else "second")
            old.kill()
            await lapse(database, old.pid)
            late = await first.start("Quick")
            assert await late.result(timeout=120) == "second", "no process of its version is left"
        async with run_worker_process(database_url, FIRST):
            early = await second.start("Quick")
            assert await early.result(timeout=120) == "first", "no process of its version is there yet"


async def test_an_event_of_newer_code_waits_until_a_process_that_knows_it_drives_the_run(
    database: Database, database_url: str
) -> None:
    first = load(FIRST)
    old, new = run_worker_process(database_url, FIRST), run_worker_process(database_url, SECOND)
    async with first, running_maintenance(first), old as older, new:
        run = await first.start("Order", number=2)
        await waits(database, run)
        load(SECOND)
        await run.send_event(signature())
        note = "SELECT note FROM tidemill.run WHERE id = $1"
        await eventually(lambda: _starts(database, note, run.id, "something that was sent to it is for another"))
        assert (await show_run(database, run.id))["state"] == "running"
        older.terminate()
        assert await older.ends() == 0
        assert await run.result(timeout=120) == ["second", 300, 300, 1, True]


async def test_a_run_that_does_not_fit_needs_attention_says_why_and_is_taken_along_by_a_version_that_fits(
    database: Database, database_url: str
) -> None:
    first = load(FIRST)
    async with first, running_maintenance(first):
        async with run_worker_process(database_url, FIRST) as old:
            parcel = await first.start("Parcel")
            await waits(database, parcel)
            old.terminate()
            await old.ends()
        await parcel.send_event(signature())
        async with run_worker_process(database_url, THIRD):
            row = await in_state(database, parcel, "needs_attention")
            assert "waits for Approval in step 'ship', which the workflow no longer has" in row["note"]
            assert "renamed_from" in row["note"]
            assert "`tidemill runs migrate`" in row["note"]
        async with run_worker_process(database_url, SECOND):
            assert await parcel.result(timeout=120) == "second", "what was sent meanwhile is not lost"


async def test_a_check_before_a_deploy_says_what_would_break_and_changes_nothing(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    first = load(FIRST)
    async with first:
        async with run_worker_process(database_url, FIRST) as old:
            order, parcel = await first.start("Order", number=2), await first.start("Parcel")
            await waits(database, order, parcel)
            old.terminate()
            await old.ends()
        job = await first.enqueue("send", to="ann")
        later = await first.enqueue("forgotten", number=1, delay="1h")
        before = await _everything(database)
        where = ("--database-url", database_url)
        said = command(tmp_path, "deploy", "check", str(THIRD), *where)
        fine, broken = (command(tmp_path, "deploy", "check", str(each), "--json", *where) for each in (SECOND, THIRD))
        assert await _everything(database) == before
    assert (fine.returncode, said.returncode, broken.returncode) == (0, 1, 1), fine.stdout + fine.stderr
    fits, breaks = json.loads(fine.stdout), json.loads(broken.stdout)
    assert (fits["breaks"], fits["runs"], fits["migrated"]) == (False, 2, 2)
    assert (fits["stuck"], fits["misfits"]) == ([], [])
    changes = [(each["name"], each["change"]) for each in fits["schedules"]]
    assert changes == [("hourly", "appears"), ("nightly", "appears")]
    stuck = {each["workflow"]: each["ids"] for each in breaks["stuck"]}
    assert stuck == {"Order": [order.id], "Parcel": [parcel.id]}
    assert {each["task"]: each["ids"] for each in breaks["misfits"]} == {"send": [job.id], "forgotten": [later.id]}
    text = " ".join(said.stdout.split())
    assert "breaks: 1 run of Parcel" in text
    assert "waits for Approval in step 'ship', which the workflow no longer has" in text


async def _everything(database: Database) -> list[Any]:
    tables = ("run", "tick", "snapshot", "inbox", "run_input", "job", "schedule", "audit", "flow_version")
    return [[tuple(row) for row in await database.fetch(f"SELECT xmin, * FROM tidemill.{each}")] for each in tables]


async def test_waiting_runs_are_moved_to_the_present_version_together_and_counted_per_version(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    def migrate(version: Path, *options: str) -> Any:
        arguments = ("runs", "migrate", "--app", str(version), "--json", "--database-url", database_url, *options)
        done = command(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first = load(FIRST)
    async with first:
        async with run_worker_process(database_url, FIRST) as old:
            runs = [await first.start("Order", number=2) for _ in range(3)]
            await waits(database, *runs)
            old.terminate()
            await old.ends()
        at = Local(database, Caller("ann", "admin"), first.declarations)
        versions = (await at.do(list_versions, ListVersions(workflow="Order"))).items
        assert [(each.runs, each.is_alive, each.is_current) for each in versions] == [(3, False, True)]
        tried = migrate(SECOND, "--flow", "Order", "--dry-run")
        assert (tried["count"], tried["stuck"], tried["dry_run"]) == (3, [], True)
        assert (await at.do(list_versions, ListVersions(workflow="Order"))).items == versions
        done = migrate(SECOND, "--flow", "Order", "--from-version", versions[0].version)
        assert (done["count"], sorted(done["ids"]), done["owned"]) == (3, [run.id for run in runs], 0)
        versions = (await at.do(list_versions, ListVersions(workflow="Order"))).items
        assert [(each.runs, each.is_current) for each in versions] == [(3, False)]
        assert migrate(SECOND)["count"] == 0, "they have it already"
        nodes = [row["node"] for row in await database.fetch("SELECT node FROM tidemill.run_input")]
        assert all(node.startswith("sign_off/") for node in nodes)
        assert await value(database, "SELECT target FROM tidemill.audit WHERE action = 'run.migrate'")
        load(SECOND)
        async with run_worker_process(database_url, SECOND):
            for run in runs:
                await run.send_event(signature())
                assert await run.result(timeout=120) == ["second", 300, 300, 1, True]


async def test_a_job_with_an_argument_of_newer_code_waits_for_a_worker_that_has_it(
    database: Database, database_url: str
) -> None:
    first = load(FIRST)
    second = load(SECOND)
    async with first, second, running_maintenance(first):
        async with worker_process(database_url, app=FIRST):
            plain = await first.enqueue("send", to="ann")
            urgent = await second.enqueue("send", to="bob", urgent=True)
            waiting = "SELECT state || ': ' || note FROM tidemill.job WHERE id = $1"
            await eventually(lambda: _starts(database, waiting, urgent.id, "no_worker: task send has no argument"))
            assert (await finished(database, plain.id))["result"] == b'"first ann"'
            async with worker_process(database_url, app=SECOND):
                assert (await finished(database, urgent.id))["result"] == b'"second bob True"'
        broken = await second.enqueue("send", to="eve", urgent=True)
        await database.fetch('UPDATE tidemill.job SET args = \'{"to": "x", "nobody": 1}\' WHERE id = $1', broken.id)
        async with worker_process(database_url, app=FIRST), worker_process(database_url, app=SECOND):
            both = "SELECT cardinality(refused_by) FROM tidemill.job WHERE id = $1"
            await eventually(lambda: _is(database, both, broken.id, 2))
            await eventually(lambda: _starts(database, waiting, broken.id, "no_worker: task send has no argument"))


async def _starts(database: Database, statement: str, argument: Any, wanted: str) -> bool:
    found = await value(database, statement, argument)
    return isinstance(found, str) and found.startswith(wanted)


class Counted:
    """A transaction that counts its statements and the rows that they return."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self.statements = self.rows = 0

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        rows = await self._tx.fetch(statement, *args)
        self.statements += 1
        self.rows += len(rows)
        return rows


#: Copies of run 1, with its journal.
COPY_RUN = """
INSERT INTO tidemill.run (id, kind, workflow, version, input, seq, awake)
SELECT 1000 + n, r.kind, r.workflow, r.version, r.input, r.seq, false
FROM tidemill.run AS r, generate_series(1, $1::int) AS n WHERE r.id = 1;
"""
COPY_TICKS = """
INSERT INTO tidemill.tick (run_id, seq, data)
SELECT 1000 + n, t.seq, t.data FROM tidemill.tick AS t, generate_series(1, $1::int) AS n WHERE t.run_id = 1
"""


@pytest.mark.long
async def test_a_check_of_ten_thousand_runs_reads_each_journal_once_in_batches(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    first = load(FIRST)
    async with first, run_worker_process(database_url, FIRST, idle=600) as old:
        run = await first.start("Order", number=2)
        await waits(database, run)
        old.kill()
    await database.fetch(COPY_RUN, 10_000)
    await database.fetch(COPY_TICKS, 10_000)
    ticks = await value(database, "SELECT count(*) FROM tidemill.tick")
    async with read_only(database, "ann") as tx:
        counted = Counted(tx)
        found = [each async for batch in older_runs(counted, first.declarations, with_current=True) for each in batch]  # pyright: ignore[reportArgumentType]
    assert len(found) == 10_001
    assert counted.statements <= 3 * (10_001 // 200 + 2)
    assert counted.rows <= 10_001 + ticks + 10, "each run and each tick is read once"
    began = time.monotonic()
    checked = command(tmp_path, "deploy", "check", str(SECOND), "--json", "--database-url", database_url)
    print(f"checked in {time.monotonic() - began:.1f} s")
    assert json.loads(checked.stdout)["migrated"] == 10_001
