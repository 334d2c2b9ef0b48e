"""Versions of workflows: how many runs each drives, and runs that are moved to the present one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.access.audit import targets
from tidemill.store.database import Database
from tidemill.store.jobs.pages import Word
from tidemill.store.runs.claims import DAG_KIND
from tidemill.store.runs.versions import (
    Definitions,
    count_versions,
    hold_run,
    live_runs,
    load_journals,
    move_run,
    read_definitions,
)
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.flows.runner.restore import RestoredRun

RUNS_AT_ONCE = 200


class ListVersions(Arguments, frozen=True, kw_only=True):
    """Which workflow."""

    workflow: Annotated[Word, doc("The name of the workflow.")]


class MigrateRuns(Arguments, frozen=True, kw_only=True):
    """Which runs to move to the present version of their workflow; by default all unfinished ones of older versions."""

    flow: Annotated[Word | None, doc("Runs of this workflow.")] = None
    from_version: Annotated[Word | None, doc("Runs of this version, as `tidemill run` shows it.")] = None
    dry_run: Annotated[bool, doc("Only say what would happen.")] = False


class FlowVersion(msgspec.Struct, frozen=True):
    """A version of a workflow that has unfinished runs."""

    version: str
    runs: int
    needs_attention: int
    since: datetime | None
    """When a run worker first had it."""
    is_alive: bool
    """Whether a run worker has it now."""
    is_current: bool | None
    """Whether it is the version of the application that answers; null if that has no code."""


class StuckRuns(msgspec.Struct, frozen=True):
    """Runs that cannot go on with a version of their workflow, for one reason."""

    workflow: str
    version: str
    why: str
    count: int
    ids: list[int]


class RunsMigrated(msgspec.Struct, frozen=True, kw_only=True):
    """What a migration has reached. Runs that a run worker owns are moved when it releases them."""

    count: int
    ids: list[int]
    owned: int
    stuck: list[StuckRuns]
    dry_run: bool


@operation("GET /flows/{workflow}/versions", role="viewer")
async def list_versions(at: Reader, args: ListVersions, declared: Declarations | None) -> ListOf[FlowVersion]:
    """Count the unfinished runs of each version of a workflow."""
    kind = None if declared is None else declared.runs.flows.get(args.workflow)
    rows = await count_versions(at.database, args.workflow)
    return ListOf(
        [
            FlowVersion(
                row["version"],
                row["runs"],
                row["needs_attention"],
                row["since"],
                row["alive"],
                None if kind is None else row["version"] == kind.version,
            )
            for row in rows
        ]
    )


@operation("POST /runs/migrate", role="operator")
async def migrate_runs(at: Reader, args: MigrateRuns, declared: Declarations) -> RunsMigrated:
    """Move unfinished runs of older versions to the present version of their workflow, where it has all they need.

    Runs that do not fit stay as they are. All other runs are moved when a run worker next takes them up.
    """
    if args.flow is not None:
        declared.runs.flow(args.flow)  # An error names the workflows that there are.
    moved: list[int] = []
    owned = 0
    stuck: dict[tuple[str, str, str], list[int]] = {}
    async for batch in older_runs(at.database, declared, flow=args.flow, version=args.from_version):
        fitting: list[tuple[Any, RestoredRun | None]] = []
        for row, restored, why in batch:
            if why is not None:
                stuck.setdefault((row["workflow"], row["version"], why), []).append(row["id"])
            elif row["owner"] is not None:
                owned += 1
            else:
                fitting.append((row, restored))
        done = [row["id"] for row, _ in fitting]
        if fitting and not args.dry_run:
            async with at.transaction() as tx:
                done = [row["id"] for row, restored in fitting if await _move(tx, row, restored, declared)]
                owned += len(fitting) - len(done)
                if done:
                    after = {"flow": args.flow, "from_version": args.from_version}
                    await tx.audit("run.migrate", targets(done, "r"), after=after)
        moved += done
    return RunsMigrated(count=len(moved), ids=moved[:1000], owned=owned, stuck=grouped(stuck), dry_run=args.dry_run)


async def older_runs(
    at: Database | Transaction,
    declared: Declarations,
    *,
    flow: str | None = None,
    version: str | None = None,
    with_current: bool = False,
) -> AsyncIterator[list[tuple[Any, RestoredRun | None, str | None]]]:
    """The unfinished runs of flows, in batches: each row with the restored run, or why it does not fit.

    A run that has not begun is not restored. `with_current` also gives the runs of the present versions.
    """
    known: Definitions = {}
    after = 0
    flows = declared.runs.flows
    while rows := await live_runs(at, after=after, limit=RUNS_AT_ONCE, workflow=flow, version=version, but=DAG_KIND):
        after = rows[-1]["id"]
        wanted = [
            row
            for row in rows
            if with_current or (row["kind"] in flows and flows[row["kind"]].version != row["version"])
        ]
        if not wanted:
            continue
        missing = {(row["kind"], row["version"]) for row in wanted} - known.keys()
        known.update(dict.fromkeys(missing, b""))
        known.update(await read_definitions(at, sorted(missing)))
        begun = [row["id"] for row in wanted if row["seq"]]
        journals = await load_journals(at.fetch, begun) if begun else ({}, {})
        yield await asyncio.to_thread(_restore_all, wanted, declared, journals, known)


def _restore_all(
    rows: list[Any],
    declared: Declarations,
    journals: tuple[Mapping[int, bytes], Mapping[int, list[bytes]]],
    definitions: Definitions,
) -> list[tuple[Any, RestoredRun | None, str | None]]:
    return [(row, *_restored(row, declared, journals, definitions)) for row in rows]


def _restored(
    row: Any,
    declared: Declarations,
    journals: tuple[Mapping[int, bytes], Mapping[int, list[bytes]]],
    definitions: Definitions,
) -> tuple[RestoredRun | None, str | None]:
    from tidemill.flows.encoding.events import decode_event
    from tidemill.flows.runner.restore import restore

    kind = declared.runs.flows.get(row["kind"])
    if kind is None:
        return None, f"the application has no workflow {row['kind']}"
    snapshots, ticks = journals
    number, version = row["id"], row["version"]
    try:
        if not row["seq"]:
            event = decode_event(row["input"])
            if not kind.takes_start(event):
                return None, f"no step takes its {type(event).__name__}, with which it is to start"
            return None, None
        definition = definitions.get((row["kind"], version)) or None
        journal = snapshots.get(number), ticks.get(number, [])
        return restore(kind.workflow, *journal, version=version, definition=definition, at=time.time()), None
    except PayloadError as error:
        return None, str(error)
    except Exception as error:  # noqa: BLE001 - the run's stored values meet the user's own code
        return None, f"{type(error).__name__}: {error}"


async def _move(tx: Transaction, row: Any, restored: RestoredRun | None, declared: Declarations) -> bool:
    """Move one run; False if a run worker has taken it meanwhile."""
    from tidemill.flows.definition.declared import declared as declaration
    from tidemill.flows.encoding.journal import encode_tick
    from tidemill.flows.runner.steps.human_input import renamed_questions

    held = await hold_run(tx, row["id"])
    if held is None or held["seq"] != row["seq"] or held["version"] != row["version"]:
        return False
    kind = declared.runs.flows[row["kind"]]
    tick = None if restored is None or restored.migrated is None else encode_tick(restored.migrated)
    renamed: list[tuple[str, str]] = []
    if restored is not None:
        former = declaration(kind.workflow).topology.renamed
        renamed = [*renamed_questions(restored.state, former), *former.items()]
    await move_run(tx, row["id"], tick, kind.version, renamed)
    return True


def grouped(stuck: Mapping[tuple[str, str, str], list[int]]) -> list[StuckRuns]:
    """Runs by workflow, version and reason."""
    return [StuckRuns(*which, len(ids), ids) for which, ids in stuck.items()]
