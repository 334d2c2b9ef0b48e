"""Reads one pipeline: its rows in the database, its files, and what has to be built.

It builds nothing, and writes only the signatures of files to the database. `Driver` builds.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.pipelines.definition.pattern import entity_id
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, check_order, patterns_of
from tidemill.pipelines.reducer.facts import (
    FileFact,
    PipelineControl,
    PipelineFacts,
    Signatures,
    take_records,
    touched_entities,
)
from tidemill.pipelines.reducer.plan import BuildPlan, make_plan
from tidemill.pipelines.reducer.staleness import BuildFailure, StateRecord
from tidemill.pipelines.stores.base import Scan, SeenFile, States, Unreadable
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database
from tidemill.store.states import states as rows

MANY = 50_000  # files; a scan of more returns its memory to the system
MOST_SKEW = 2.0  # seconds by which clocks may differ without a note


class PipelineView:
    """One pipeline, and everything that is known about it."""

    def __init__(self, database: Database, pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.database = database
        self.pipeline = pipeline
        self.states: States = open_states(pipeline, database)
        self.order = check_order(pipeline.stages.values())
        self.patterns = patterns_of(self.order)
        self.world = PipelineFacts()
        self.busy: dict[str, str] = {}  # outputs that are being built here or elsewhere, and their stages
        self.is_deferred = False  # whether states of several inputs are to be planned, with all others
        self.distrusted: set[str] = set()  # changed just before they were read
        self.unknown: set[str] = set()  # the content may not have been read since the last change
        self.folders: dict[str, int] = {}
        self.forgotten: list[str] = []  # sources that no longer exist, and are still in the database
        self._unseen: list[str] = []
        self._unreadable: dict[str, str] = {}
        self._round = 0
        self._clock = clock
        self._database_ahead = 0.0
        self._files_ahead = 0.0

    @property
    def problems(self) -> list[str]:
        """What cannot be read, and why."""
        return [*self._unseen, *(why for path, why in self._unreadable.items() if path in self.world.files)]

    @property
    def notes(self) -> list[str]:
        """What is unusual but harmless: clocks that differ."""
        notes = []
        for what, ahead in (("database", self._database_ahead), ("file system", self._files_ahead)):
            if abs(ahead) > MOST_SKEW:
                word = "ahead of" if ahead > 0 else "behind"
                notes.append(
                    f"the clock of the {what} is {abs(ahead):,.0f} s {word} this host's: set it right. "
                    "Until then its times are used"
                )
        return notes

    def now(self) -> float:
        """The time by the database's clock, from which this host's clock may differ by hours."""
        return self._clock.now() + self._database_ahead

    # -- rows of the database -----------------------------------------------------------------------

    async def load(self) -> None:
        """Read all rows of the pipeline."""
        name, world, stages = self.pipeline.name, self.world, self.pipeline.stages
        files = world.files
        texts: dict[str, str] = {}  # An output of one stage is an input of another: each text is stored once.
        async for chunk in rows.in_chunks(self.database, rows.LOAD_FILES, name):
            for path, signature, size, content in chunk:
                files[path] = FileFact(0, signature, texts.setdefault(content, content), size)
        async for chunk in rows.in_chunks(self.database, rows.LOAD_STATES, name):
            for stage, entity, content, code, inputs, size, signature, version, invalid_by in chunk:
                if stage not in stages:
                    continue
                try:
                    path = "" if stages[stage].scatter else stages[stage].quick_path(entity)
                except ConfigError:
                    continue  # The stage had another pattern then.
                content, code = texts.setdefault(content, content), texts.setdefault(code, code)
                inputs = texts.setdefault(inputs, inputs)
                world.records[stage][entity] = StateRecord(content, code, inputs, size, version, invalid_by)
                if signature and path:
                    files[path] = FileFact(0, signature, content, size)
        await self.load_requests()

    async def reload(self) -> None:
        """Read the rows of states again, and keep what is known of the files. Builds go on meanwhile."""
        world, stages = self.world, self.pipeline.stages
        before = {name: dict(world.records[name]) for name in stages}
        found: dict[str, dict[str, StateRecord]] = {name: {} for name in stages}
        async for chunk in rows.in_chunks(self.database, rows.LOAD_STATES, self.pipeline.name):
            for row in chunk:
                stage, entity = row["stage"], row["entity"]
                if stage in stages and fits(stages[stage], entity):
                    record, known = record_of(row), before[stage].get(entity)
                    found[stage][entity] = record if known is None or known != record else known
        for name in stages:
            take_records(world.records[name], before[name], found[name])
        await self.load_requests()

    async def reload_some(self, stage: Stage, entities: Sequence[str]) -> dict[str, int]:
        """Read the rows of some states again; returns the signatures of their outputs."""
        records = self.world.records[stage.name]
        before = {entity: records[entity] for entity in entities if entity in records}
        found = await self.database.fetch(rows.LOAD_SOME, self.pipeline.name, stage.name, list(entities))
        take_records(records, before, {row["entity"]: record_of(row) for row in found})
        return {row["entity"]: row["signature"] for row in found}

    async def load_requests(self) -> None:
        """Read failures and the requests of operators: few rows, read again at every notification."""
        name, world = self.pipeline.name, self.world
        before = {stage: dict(failures) for stage, failures in world.failures.items()}
        found = await self.database.fetch(rows.LOAD_FAILURES, name)
        for stage, failures in before.items():
            for entity, failure in failures.items():
                if world.failures[stage].get(entity) is failure:
                    del world.failures[stage][entity]
        for row in found:
            if row["entity"] not in world.failures[row["stage"]]:  # It has failed here since.
                self.take_failure(row)
        world.codes = {
            (row["stage"], row["code"]): decode(row["parts"], dict[str, str])
            for row in await self.database.fetch(rows.LOAD_CODES, name)
        }
        (row,) = await self.database.fetch(rows.DATABASE_NOW)
        self._database_ahead = row["now"] - self._clock.now()
        world.controls = {
            row["stage"]: PipelineControl(
                row["paused_by"],
                row["approved_code"],
                row["approved_until"].timestamp() if row["approved_until"] else 0.0,
            )
            for row in await self.database.fetch(rows.LOAD_CONTROLS, name)
        }

    def take_failure(self, row: Any) -> None:
        """Take over a row of a failure."""
        values = dict(row)
        stage, entity = values.pop("stage"), values.pop("entity")
        self.world.failures[stage][entity] = msgspec.convert(values, BuildFailure)

    async def keep_codes(self) -> None:
        """Store the parts of each stage's code."""
        codes = [(stage.name, stage.code.total, stage.code.parts) for stage in self.order]
        await rows.keep_codes(self.database, self.pipeline.name, codes)
        for stage, code, parts in codes:
            self.world.codes[stage, code] = parts

    # -- files --------------------------------------------------------------------------------------

    async def read_all(self) -> None:
        """Read all rows and scan all files, at the same time."""
        scanning = asyncio.ensure_future(self.states.scan(self.patterns))
        try:
            await self.load()
        finally:
            scan = await scanning
        self.take_scan(scan)

    def require_place(self) -> None:
        """Raise an error if states are known but their folder does not exist: they are not treated as deleted."""
        if isinstance(self.states, FileStates):
            self.states.check_root()
            if any(self.world.records.values()):
                self.states.check_has_states(self.pipeline.name)

    async def measure_clocks(self) -> None:
        """Measure how far the clock of the file system differs from this host's."""
        if isinstance(self.states, FileStates):
            self._files_ahead = await asyncio.to_thread(self.states.measure_skew)

    async def scan(self) -> list[str]:
        """Scan all files; returns the paths that have changed."""
        return await self._scan(self.states.scan(self.patterns))

    async def quick_scan(self, share: int) -> list[str]:
        """Scan changed folders, and check every `share`-th file: that many calls check all files."""
        self._round += 1
        if not isinstance(self.states, FileStates) or self._round % share == 0:
            return await self.scan()
        changed = await self.scan_folders()
        paths = list(self.world.files)[self._round % share :: share]
        return changed + await self.refresh(paths)

    async def scan_folders(self) -> list[str]:
        """Find new and deleted files in folders that have changed; returns their paths."""
        states = self.states
        if not isinstance(states, FileStates):
            return await self.scan()
        folders = await asyncio.to_thread(states.changed_folders, self.folders)
        if not folders:
            return []
        lately = self.world.seen_lately = set()
        try:
            found = await asyncio.to_thread(
                states.scan_folders, self.patterns, Signatures(self.world.files), folders, list(self.folders)
            )
        finally:
            self.world.seen_lately = None
        return self._take_folders(found, folders, lately)

    def _take_folders(self, found: Scan, changed: Sequence[str], lately: set[str]) -> list[str]:
        """Take over the scan of some folders, except for paths that were read after it began."""
        files, there, blind = self.world.files, found.signatures, tuple(found.blind)
        looked = {*changed, *found.folders}
        gone: set[str] = set()
        for pattern, paths in self.world.matched.items():
            if not pattern.has_one_folder or f"{pattern.folder}/".removeprefix("/") in looked:
                gone.update(path for path in paths if path not in there and path[: path.rfind("/") + 1] in looked)
        marks = {path: None for path in gone if not path.startswith(blind)}
        marks |= {path: mark for path, mark in there.items() if path not in files or files[path].signature != mark}
        changes = [path for path, mark in marks.items() if path not in lately and self.world.see(path, mark)]
        self.unknown.update(path for path in changes if marks[path] is not None)
        self.forgotten += [path for path in changes if marks[path] is None]
        self.distrusted |= found.racy
        for folder in changed:
            self.folders.pop(folder, None)
        self.folders |= found.folders
        self._unseen = list(dict.fromkeys([*self._unseen, *found.problems]))
        return changes

    async def without_rescan(self, work: Awaitable[None]) -> None:
        """Run work that changes folders but no states, such as writing manifests, without listing them again."""
        states = self.states
        if not isinstance(states, FileStates):
            return await work
        changed = set(states.changed_folders(self.folders))
        await work
        for folder in states.changed_folders(self.folders):
            if folder not in changed:
                self.folders[folder] = states.folder_time(folder)
        return None

    async def _scan(self, scan: Awaitable[Scan]) -> list[str]:
        """Take over a scan of all files, except for paths that were read after it began."""
        lately = self.world.seen_lately = set()
        try:
            found = await scan
        finally:
            self.world.seen_lately = None
        for path in lately:
            found.signatures.pop(path, None)
            for pattern, paths in found.matched.items():
                if path not in self.world.files:
                    paths.pop(path, None)
                elif pattern.values(path) is not None:
                    paths[path] = None
            if path in self.world.files:
                found.signatures[path] = self.world.files[path].signature
        changed = self.take_scan(found)
        del found
        give_back_memory(self)
        return changed

    def take_scan(self, scan: Scan) -> list[str]:
        """Take over a scan of all files; returns the paths that have changed."""
        before = self.world.files
        if scan.blind:
            _keep_unreadable(scan, before)
        files: dict[str, FileFact] = {}  # a new dict, so that all tables share the texts of the scan
        changed: list[str] = []
        for path, signature in scan.signatures.items():
            fact = before.get(path)
            if fact is None:
                fact = FileFact(signature)
                changed.append(path)
            elif fact.signature != signature:
                if fact.signature or fact.known != signature:
                    changed.append(path)
                # Equal numbers share one object.
                fact.signature = fact.known if fact.known == signature else signature
            files[path] = fact
        if len(before) + len(changed) > len(files):
            gone = [path for path in before if path not in files]
            changed += [path for path in gone if before[path].signature]
            self.forgotten += [path for path in gone if before[path].known]
        self.world.files = files
        self.world.matched = scan.matched
        self.unknown.update(path for path in changed if path in files)
        self.distrusted |= scan.racy
        self.folders = scan.folders
        self._unseen = scan.problems
        return changed

    async def refresh(self, paths: Iterable[str]) -> list[str]:
        """Read the signatures of some paths; returns the paths that have changed."""
        patterns = self.patterns
        wanted = [path for path in paths if any(pattern.values(path) is not None for pattern in patterns)]
        found = await self.states.read_signatures(wanted)
        changed = [path for path, signature in found.items() if self.world.see(path, signature)]
        there = [path for path in changed if found[path] is not None]
        self.forgotten += [path for path in changed if found[path] is None]
        self.unknown.update(there)
        self.distrusted.update(there)
        return changed

    async def read_unknown(self, *, store: bool = True) -> list[str]:
        """Read the files whose content is unknown; returns those whose content has changed."""
        files = self.world.files
        unknown = [path for path in self.unknown if path in files and files[path].known != files[path].signature]
        self.unknown.clear()
        return await self.read(unknown, store=store)

    async def read(self, paths: Sequence[str], *, store: bool = True) -> list[str]:
        """Read these files; stores those that were not changed just before. Returns those with a new content."""
        changed: list[str] = []
        sources: list[tuple[str, int, int, str]] = []
        outputs: dict[str, list[tuple[str, int]]] = {}
        for start in range(0, len(paths), 2000):
            for path, seen in (await self.states.contents(paths[start : start + 2000])).items():
                self._unreadable.pop(path, None)
                fact = self.world.files.get(path)
                if isinstance(seen, Unreadable):
                    self._unreadable[path] = seen.why  # Its signature changes when it can be read again.
                    continue
                if seen is None or fact is None:
                    self.distrusted.add(path)
                    self.unknown.add(path)
                    continue
                if _take_content(fact, seen):
                    changed.append(path)
                if path in self.distrusted:
                    continue
                maker = self.maker(path)
                if maker is None or maker[0].scatter:
                    sources.append((path, seen.signature, seen.size, seen.content))
                elif (record := self.world.records[maker[0].name].get(maker[1])) and record.content == seen.content:
                    outputs.setdefault(maker[0].name, []).append((maker[1], seen.signature))
        if not store:
            return changed
        if sources:
            await rows.keep_files(self.database, self.pipeline.name, sources)
        for stage, touched in outputs.items():
            await rows.touch_states(self.database, self.pipeline.name, stage, touched)
        return changed

    async def reread_distrusted(self) -> list[str]:
        """Read the files again that were changed just before they were read."""
        again, self.distrusted = sorted(self.distrusted), set()
        await self.refresh(again)
        self.distrusted = set()
        return await self.read([path for path in again if path in self.world.files])

    async def forget_gone(self) -> None:
        """Delete the rows of sources that no longer exist."""
        gone, self.forgotten = [path for path in self.forgotten if path not in self.world.files], []
        if gone:
            await rows.forget_files(self.database, self.pipeline.name, gone)

    def maker(self, path: str) -> tuple[Stage, str] | None:
        """The stage and the entity whose output a path is."""
        for stage in self.order:
            found = stage.output.match(path)
            if found is not None:
                if any(name not in found for name in stage.variables):
                    return stage, ""
                return stage, entity_id([found[name] for name in stage.variables]) if stage.variables else ""
        return None

    # -- what has to be built -----------------------------------------------------------------------

    def plan(self, changed: Iterable[str] | None = None, retries: Mapping[str, set[str]] | None = None) -> BuildPlan:
        """The plan for all states, or for those that depend on changed paths or are due for a retry.

        States of several inputs are in a plan for all alone: it knows which of them are about to be built.
        """
        only: dict[str, set[str] | None] | None = None
        self.is_deferred = self.is_deferred and changed is not None
        if changed is not None:
            paths, only = list(changed), {}
            for stage in self.order:
                touched = touched_entities(stage, paths)
                if touched is not None:
                    touched |= (retries or {}).get(stage.name, set())
                if touched is None or touched:
                    self.is_deferred |= stage.named
                    only |= {} if stage.named else {stage.name: touched}
        plan = make_plan(self.order, self.world, self.now(), only=only, busy=self.busy)
        if self._unseen:
            plan.orphans, plan.past_failures = [], []  # A file that cannot be read is not deleted.
        return plan

    def output_key(self, stage: str, entity: str) -> str:
        """The key of a state among those being built: its path, or its name if it has many paths."""
        known = self.pipeline.stages[stage]
        return f"{stage}:{entity}" if known.scatter else known.quick_path(entity)

    def next_retry(self) -> float | None:
        """When the next failed state is retried."""
        now = self.now()
        times = [
            failure.retry_at
            for failures in self.world.failures.values()
            for failure in failures.values()
            if failure.retry_at is not None and failure.retry_at > now
        ]
        return min(times, default=None)

    def due_retries(self) -> dict[str, set[str]]:
        """The failed states whose retry is due, by stage."""
        now, due = self.now(), {}
        for stage in self.order:
            found = {
                entity
                for entity, failure in self.world.failures[stage.name].items()
                if failure.retry_at is not None
                and failure.retry_at <= now
                and self.output_key(stage.name, entity) not in self.busy
            }
            if found:
                due[stage.name] = found
        return due


async def read_and_plan(database: Database, pipeline: Pipeline) -> tuple[PipelineView, BuildPlan]:
    """Read a pipeline, and plan what has to be built; builds nothing."""
    pipeline_view = PipelineView(database, pipeline)
    await pipeline_view.read_all()
    pipeline_view.require_place()
    await pipeline_view.read_unknown()
    return pipeline_view, pipeline_view.plan()


def fits(stage: Stage, entity: str) -> bool:
    """Whether an entity fits the pattern of a stage, which may have been another before."""
    try:
        return stage.scatter != () or bool(stage.quick_path(entity))
    except ConfigError:
        return False


def record_of(row: Any) -> StateRecord:
    """A state from its row."""
    return StateRecord(row["content"], row["code"], row["inputs"], row["size"], row["version"], row["invalid_by"])


def _take_content(fact: FileFact, seen: SeenFile) -> bool:
    """Take over the content of a file; returns whether it has changed."""
    is_new = fact.content != seen.content or not fact.known
    fact.signature = fact.known = seen.signature
    fact.content, fact.size = seen.content, seen.size
    return is_new


def _keep_unreadable(scan: Scan, before: Mapping[str, FileFact]) -> None:
    """Treat files in folders that cannot be read as unchanged."""
    blind = tuple(scan.blind)
    for path, fact in before.items():
        known = fact.signature or fact.known
        if path not in scan.signatures and known and path.startswith(blind):
            scan.signatures[path] = known
            for pattern, paths in scan.matched.items():
                if pattern.values(path) is not None:
                    paths[path] = None


def give_back_memory(pipeline_view: PipelineView) -> None:
    """Return memory to the system: a scan needs more for a moment than its result."""
    if len(pipeline_view.world.files) < MANY:
        return
    gc.collect()
    if sys.platform == "linux":
        import ctypes  # slow to load

        with contextlib.suppress(AttributeError, OSError):  # not with every C library
            ctypes.CDLL(None).malloc_trim(0)


def open_states(pipeline: Pipeline, database: Database) -> States:
    """The place where a pipeline's states are."""
    if pipeline.store is None:
        return FileStates(pipeline.root)
    return pipeline.store.open(database)
