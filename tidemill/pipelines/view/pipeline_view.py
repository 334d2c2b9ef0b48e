"""Reads one pipeline: what the database knows, what the files are, and what has to be built.

Nothing is built here, and nothing is changed but what the database remembers of files: see `Driver` for that.
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
from tidemill.pipelines.definition.pattern import Pattern, entity_id
from tidemill.pipelines.definition.pipeline import Pipeline, Stage, check_order
from tidemill.pipelines.reducer.facts import FileFact, PipelineControl, PipelineFacts, Signatures, touched_entities
from tidemill.pipelines.reducer.plan import BuildPlan, make_plan
from tidemill.pipelines.reducer.staleness import BuildFailure, StateRecord
from tidemill.pipelines.stores.base import SeenFile, States, StateStoreError, Survey, Unreadable
from tidemill.pipelines.stores.files import FileStates
from tidemill.store.database import Database
from tidemill.store.states import states as rows

MANY = 50_000  # files, from which on memory is worth giving back
WORTH_TELLING = 2.0  # seconds by which clocks differ


class PipelineView:
    """One pipeline, and everything that is known about it."""

    def __init__(self, database: Database, pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.database = database
        self.pipeline = pipeline
        self.states: States = open_states(pipeline, database)
        self.order = check_order(pipeline.stages.values())
        self.patterns = _patterns(self.order)  # everything that is worth looking at
        self.world = PipelineFacts()
        self.busy: dict[str, str] = {}  # outputs that are being built here or elsewhere, and their stages
        self.distrusted: set[str] = set()  # changed just before they were looked at
        self.unknown: set[str] = set()  # perhaps not read yet as they are
        self.folders: dict[str, int] = {}
        self.intents: list[tuple[str, str]] = []  # states that a builder was about to publish
        self.forgotten: list[str] = []  # sources that are gone, and still in the database
        self._unseen: list[str] = []
        self._unreadable: dict[str, str] = {}
        self._round = 0
        self._clock = clock
        self._database_ahead = 0.0
        self._files_ahead = 0.0

    @property
    def problems(self) -> list[str]:
        """What cannot be looked at, and why."""
        return [*self._unseen, *(why for path, why in self._unreadable.items() if path in self.world.files)]

    @property
    def notes(self) -> list[str]:
        """What is strange here and does no harm: clocks that differ."""
        told = []
        for what, ahead in (("database", self._database_ahead), ("file system", self._files_ahead)):
            if abs(ahead) > WORTH_TELLING:
                word = "ahead of" if ahead > 0 else "behind"
                told.append(
                    f"the clock of the {what} is {abs(ahead):,.0f} s {word} this host's: set it right. "
                    "Times are taken from there until then"
                )
        return told

    def now(self) -> float:
        """The time as the database has it: what this host's clock says may differ by hours."""
        return self._clock.now() + self._database_ahead

    # -- what the database knows --------------------------------------------------------------------

    async def load(self) -> None:
        """Learn all that the database knows."""
        name, world, stages = self.pipeline.name, self.world, self.pipeline.stages
        files = world.files
        texts: dict[str, str] = {}  # What is an output here is an input there: each text needs its memory once.
        async for chunk in rows.in_chunks(self.database, rows.LOAD_FILES, name):
            for path, signature, size, content in chunk:
                files[path] = FileFact(0, signature, texts.setdefault(content, content), size)
        self.intents.clear()
        async for chunk in rows.in_chunks(self.database, rows.LOAD_STATES, name):
            for stage, entity, content, code, inputs, size, signature, version, invalid_by, intent in chunk:
                if stage not in stages:
                    continue
                try:
                    path = "" if stages[stage].scatter else stages[stage].quick_path(entity)
                except ConfigError:
                    continue  # The stage had another pattern then.
                content, code = texts.setdefault(content, content), texts.setdefault(code, code)
                inputs = texts.setdefault(inputs, inputs)
                world.records[stage][entity] = StateRecord(content, code, inputs, size, version, invalid_by)
                if intent is not None:
                    self.intents.append((stage, entity))
                if signature and path:
                    files[path] = FileFact(0, signature, content, size)
        await self.load_requests()

    async def reload(self) -> None:
        """Learn anew what the database knows, without forgetting what is known of the files."""
        world, stages = self.world, self.pipeline.stages
        world.records.clear()
        async for chunk in rows.in_chunks(self.database, rows.LOAD_STATES, self.pipeline.name):
            for row in chunk:
                if row["stage"] in stages and fits(stages[row["stage"]], row["entity"]):
                    world.records[row["stage"]][row["entity"]] = record_of(row)
        await self.load_requests()

    async def load_requests(self) -> None:
        """Read failures and the requests of operators: few rows, read again at every notification."""
        name, world = self.pipeline.name, self.world
        world.failures.clear()
        for row in await self.database.fetch(rows.LOAD_FAILURES, name):
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
        """What the database says of a failure becomes what is known."""
        values = dict(row)
        stage, entity = values.pop("stage"), values.pop("entity")
        self.world.failures[stage][entity] = msgspec.convert(values, BuildFailure)

    async def keep_codes(self) -> None:
        """Have the database remember what the stages' code is made of."""
        codes = [(stage.name, stage.code.total, stage.code.parts) for stage in self.order]
        await rows.keep_codes(self.database, self.pipeline.name, codes)
        for stage, code, parts in codes:
            self.world.codes[stage, code] = parts

    # -- what the files are -------------------------------------------------------------------------

    async def read_all(self) -> None:
        """Learn all that the database knows and look at all files, both at once."""
        surveying = asyncio.ensure_future(self.states.survey(self.patterns))
        try:
            await self.load()
        finally:
            survey = await surveying
        self.take_survey(survey)

    def require_place(self) -> None:
        """An error if states are known and their folder is not here: what cannot be seen is not gone."""
        root = self.pipeline.root
        if self.pipeline.store is None and any(self.world.records.values()) and not root.is_dir():
            raise StateStoreError(
                f"there is no folder {root} here, where pipeline {self.pipeline.name} keeps its states: look at it "
                "where that folder is, or make it if everything is to be built anew"
            )

    async def measure_clocks(self) -> None:
        """Find out whether the files' clock is this host's."""
        if isinstance(self.states, FileStates):
            self._files_ahead = await asyncio.to_thread(self.states.measure_skew)

    async def survey(self) -> list[str]:
        """Walk over all files; returns the paths that have changed."""
        return await self._survey(self.states.survey(self.patterns))

    async def quick_survey(self, share: int) -> list[str]:
        """Look for what came and went, and at every `share`-th file: all of them are looked at in so many calls."""
        self._round += 1
        if not isinstance(self.states, FileStates) or self._round % share == 0:
            return await self.survey()
        changed = await self.survey_folders()
        paths = list(self.world.files)[self._round % share :: share]
        return changed + await self.look(paths)

    async def survey_folders(self) -> list[str]:
        """Look for files that came and went, in folders that have changed; returns them."""
        states = self.states
        if not isinstance(states, FileStates):
            return await self.survey()
        folders = await asyncio.to_thread(states.changed_folders, self.folders)
        if not folders:
            return []
        lately = self.world.seen_lately = set()
        try:
            found = await asyncio.to_thread(
                states.survey_folders, self.patterns, Signatures(self.world.files), folders, list(self.folders)
            )
        finally:
            self.world.seen_lately = None
        return self._take_folders(found, folders, lately)

    def _take_folders(self, found: Survey, changed: Sequence[str], lately: set[str]) -> list[str]:
        """What a look into some folders has found becomes what is known; what was seen since it began is newer."""
        files, there, blind = self.world.files, found.signatures, tuple(found.blind)
        looked = {*changed, *found.folders}
        gone: set[str] = set()
        for pattern, paths in self.world.matched.items():
            if not pattern.has_one_folder or f"{pattern.folder}/".removeprefix("/") in looked:
                gone.update(path for path in paths if path not in there and path[: path.rfind("/") + 1] in looked)
        news = {path: None for path in gone if not path.startswith(blind)}
        news |= {path: mark for path, mark in there.items() if path not in files or files[path].signature != mark}
        changes = [path for path, mark in news.items() if path not in lately and self.world.see(path, mark)]
        self.unknown.update(path for path in changes if news[path] is not None)
        self.forgotten += [path for path in changes if news[path] is None]
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

    async def _survey(self, survey: Awaitable[Survey]) -> list[str]:
        """Take in a look at everything; what was seen since it began is newer, and stays."""
        lately = self.world.seen_lately = set()
        try:
            found = await survey
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
        changed = self.take_survey(found)
        del found
        give_back_memory(self)
        return changed

    def take_survey(self, survey: Survey) -> list[str]:
        """What a look at all files has found becomes what is known."""
        before = self.world.files
        if survey.blind:
            _keep_unseen(survey, before)
        files: dict[str, FileFact] = {}  # made anew, so that all tables share the survey's own texts
        changed: list[str] = []
        for path, signature in survey.signatures.items():
            fact = before.get(path)
            if fact is None:
                fact = FileFact(signature)
                changed.append(path)
            elif fact.signature != signature:
                if fact.signature or fact.known != signature:
                    changed.append(path)
                # The same number twice needs its memory once.
                fact.signature = fact.known if fact.known == signature else signature
            files[path] = fact
        if len(before) + len(changed) > len(files):
            gone = [path for path in before if path not in files]
            changed += [path for path in gone if before[path].signature]
            self.forgotten += [path for path in gone if before[path].known]
        self.world.files = files
        self.world.matched = survey.matched
        self.unknown.update(path for path in changed if path in files)
        self.distrusted |= survey.racy
        self.folders = survey.folders
        self._unseen = survey.problems
        return changed

    async def look(self, paths: Iterable[str]) -> list[str]:
        """Read some paths only; returns those that have changed."""
        patterns = self.patterns
        wanted = [path for path in paths if any(pattern.values(path) is not None for pattern in patterns)]
        found = await self.states.look(wanted)
        changed = [path for path, signature in found.items() if self.world.see(path, signature)]
        there = [path for path in changed if found[path] is not None]
        self.forgotten += [path for path in changed if found[path] is None]
        self.unknown.update(there)
        self.distrusted.update(there)
        return changed

    async def read_unknown(self, *, store: bool = True) -> list[str]:
        """Read all files whose content is not known; returns those whose content has changed."""
        files = self.world.files
        unknown = [path for path in self.unknown if path in files and files[path].known != files[path].signature]
        self.unknown.clear()
        return await self.read(unknown, store=store)

    async def read(self, paths: Sequence[str], *, store: bool = True) -> list[str]:
        """Read these files; what is stored of them are those that can be trusted to stay as they are."""
        news: list[str] = []
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
                if self._take_content(path, fact, seen):
                    news.append(path)
                if path in self.distrusted:
                    continue
                maker = self.maker(path)
                if maker is None or maker[0].scatter:
                    sources.append((path, seen.signature, seen.size, seen.content))
                elif (record := self.world.records[maker[0].name].get(maker[1])) and record.content == seen.content:
                    outputs.setdefault(maker[0].name, []).append((maker[1], seen.signature))
        if not store:
            return news
        if sources:
            await rows.keep_files(self.database, self.pipeline.name, sources)
        for stage, touched in outputs.items():
            await rows.touch_states(self.database, self.pipeline.name, stage, touched)
        return news

    def _take_content(self, path: str, fact: FileFact, seen: SeenFile) -> bool:
        """Store what was read; returns whether it is a change."""
        is_news = fact.content != seen.content or not fact.known
        fact.signature = fact.known = seen.signature
        fact.content, fact.size = seen.content, seen.size
        return is_news

    async def reread_distrusted(self) -> list[str]:
        """Look once more at files that were changed just before they were read."""
        again, self.distrusted = sorted(self.distrusted), set()
        await self.look(again)
        self.distrusted = set()
        return await self.read([path for path in again if path in self.world.files])

    async def forget_gone(self) -> None:
        """Let the database forget sources that are gone for good."""
        gone, self.forgotten = [path for path in self.forgotten if path not in self.world.files], []
        if gone:
            await rows.forget_files(self.database, self.pipeline.name, gone)

    def maker(self, path: str) -> tuple[Stage, str] | None:
        """The stage and the entity that a path is an output of."""
        for stage in self.order:
            found = stage.output.match(path)
            if found is not None:
                if stage.scatter or any(name not in found for name in stage.variables):
                    return stage, ""
                return stage, entity_id([found[name] for name in stage.variables]) if stage.variables else ""
        return None

    # -- what has to be built -----------------------------------------------------------------------

    def plan(self, changed: Iterable[str] | None = None, retries: Mapping[str, set[str]] | None = None) -> BuildPlan:
        """The plan for everything, or for those whom a change of these paths concerns, or who are to be retried."""
        only: dict[str, set[str] | None] | None = None
        if changed is not None:
            paths, only = list(changed), {}
            for stage in self.order:
                touched = touched_entities(stage, paths)
                if touched is not None:
                    touched |= (retries or {}).get(stage.name, set())
                if touched is None or touched:
                    only[stage.name] = touched
        plan = make_plan(self.order, self.world, self.now(), only=only, busy=self.busy)
        if self._unseen:
            plan.orphans, plan.past_failures = [], []  # What could not be looked at is not gone.
        return plan

    def output_key(self, stage: str, entity: str) -> str:
        """What stands for a state among those being built: its path, or its name where it has many."""
        known = self.pipeline.stages[stage]
        return f"{stage}:{entity}" if known.scatter else known.quick_path(entity)

    def next_retry(self) -> float | None:
        """When the next failure is due to be tried again."""
        now = self.now()
        times = [
            failure.retry_at
            for failures in self.world.failures.values()
            for failure in failures.values()
            if failure.retry_at is not None and failure.retry_at > now
        ]
        return min(times, default=None)

    def due_retries(self) -> dict[str, set[str]]:
        """The states, by stage, whose failure is due to be tried again."""
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


async def look_at(database: Database, pipeline: Pipeline) -> tuple[PipelineView, BuildPlan]:
    """A pipeline as it is, and what has to be built; nothing is built here."""
    pipeline_view = PipelineView(database, pipeline)
    await pipeline_view.read_all()
    pipeline_view.require_place()
    await pipeline_view.read_unknown()
    return pipeline_view, pipeline_view.plan()


def fits(stage: Stage, entity: str) -> bool:
    """Whether an entity can be one of a stage's; it may be from when the stage had another pattern."""
    try:
        return stage.scatter != () or bool(stage.quick_path(entity))
    except ConfigError:
        return False


def record_of(row: Any) -> StateRecord:
    """A state as the database tells it."""
    return StateRecord(row["content"], row["code"], row["inputs"], row["size"], row["version"], row["invalid_by"])


def _patterns(stages: Sequence[Stage]) -> list[Pattern]:
    inputs = [one.pattern for stage in stages for one in stage.inputs]
    return list(dict.fromkeys([*inputs, *(stage.output for stage in stages)]))


def _keep_unseen(survey: Survey, before: Mapping[str, FileFact]) -> None:
    """Files in folders that could not be looked at are taken to be as they were last known."""
    blind = tuple(survey.blind)
    for path, fact in before.items():
        known = fact.signature or fact.known
        if path not in survey.signatures and known and path.startswith(blind):
            survey.signatures[path] = known
            for pattern, paths in survey.matched.items():
                if pattern.values(path) is not None:
                    paths[path] = None


def give_back_memory(pipeline_view: PipelineView) -> None:
    """A look at everything needs more for a moment than what is known afterwards: the rest goes back to the system."""
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
