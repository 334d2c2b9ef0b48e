"""Looking at one pipeline: what the database knows, what the files are, and what is to be done about it.

Nothing is built here, and nothing is changed but what the database remembers of files: see `Driver` for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import sys
from collections.abc import Awaitable, Iterable, Sequence

import msgspec

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.pipelines.files import FileStates
from tidemill.pipelines.model import Pipeline, Stage, check_order
from tidemill.pipelines.pattern import Pattern, entity_id
from tidemill.pipelines.plan import Plan, make_plan
from tidemill.pipelines.staleness import Failure, Record
from tidemill.pipelines.states import States, Survey
from tidemill.pipelines.world import Control, FileFact, Signatures, World, touched_entities
from tidemill.store import states as rows
from tidemill.store.database import Database

MANY = 50_000  # files, from which on memory is worth giving back


class Looker:
    """One pipeline, and everything that is known about it."""

    def __init__(self, database: Database, pipeline: Pipeline, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.database = database
        self.pipeline = pipeline
        self.states: States = open_states(pipeline, database)
        self.order = check_order(pipeline.stages.values())
        self.world = World()
        self.problems: list[str] = []
        self.busy: dict[str, str] = {}  # outputs that are being built here or elsewhere, and their stages
        self.distrusted: set[str] = set()  # changed just before they were looked at
        self.unknown: set[str] = set()  # perhaps not read yet as they are
        self.folders: dict[str, int] = {}
        self.intents: list[tuple[str, str]] = []  # states that somebody was about to put in place
        self._round = 0
        self._clock = clock
        self._skew = 0.0

    @property
    def patterns(self) -> list[Pattern]:
        """Everything that is worth looking at."""
        found = [one.pattern for stage in self.order for one in stage.inputs]
        return list(dict.fromkeys([*found, *(stage.output for stage in self.order)]))

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
                world.records[stage][entity] = Record(content, code, inputs, size, version, invalid_by)
                if intent is not None:
                    self.intents.append((stage, entity))
                if signature and path:
                    files[path] = FileFact(0, signature, content, size)
        await self.load_wishes()

    def now(self) -> float:
        """The time as the database has it."""
        return self._clock.now() + self._skew

    async def load_wishes(self) -> None:
        """Learn what failed and what operators want: little, and read anew whenever somebody says that it changed."""
        name, world = self.pipeline.name, self.world
        world.failures.clear()
        for row in await self.database.fetch(rows.LOAD_FAILURES, name):
            values = dict(row)
            stage, entity = values.pop("stage"), values.pop("entity")
            world.failures[stage][entity] = msgspec.convert(values, Failure)
        world.codes = {
            (row["stage"], row["code"]): decode(row["parts"], dict[str, str])
            for row in await self.database.fetch(rows.LOAD_CODES, name)
        }
        # Times of failures and approvals are the database's: what this host's clock says may differ by hours.
        (row,) = await self.database.fetch(rows.DATABASE_NOW)
        self._skew = row["now"] - self._clock.now()
        world.controls = {
            row["stage"]: Control(
                row["paused_by"],
                row["approved_code"],
                row["approved_until"].timestamp() if row["approved_until"] else 0.0,
            )
            for row in await self.database.fetch(rows.LOAD_CONTROLS, name)
        }

    async def look_around(self) -> None:
        """Learn all that the database knows and look at all files, both at once."""
        surveying = asyncio.ensure_future(self.states.survey(self.patterns))
        try:
            await self.load()
        finally:
            survey = await surveying
        self.take_survey(survey)

    async def survey(self) -> list[str]:
        """Look at all files; returns the paths that are news."""
        return await self._survey(self.states.survey(self.patterns))

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
        if len(self.world.files) > MANY:
            give_back_memory()
        return changed

    def take_survey(self, survey: Survey) -> list[str]:
        """What a look at all files has found becomes what is known."""
        before = self.world.files
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
            changed += [path for path, fact in before.items() if path not in files and fact.signature]
        self.world.files = files
        self.world.matched = survey.matched
        self.unknown.update(path for path in changed if path in files)
        self.problems = survey.problems
        self.distrusted = survey.racy
        self.folders = survey.folders
        return changed

    async def quick_survey(self, share: int) -> list[str]:
        """Look for what came and went, and at every `share`-th file: all of them are looked at in so many calls."""
        states = self.states
        if not isinstance(states, FileStates):
            return await self.survey()
        changed: list[str] = []
        if await asyncio.to_thread(states.changed_folders, self.folders):
            problems = self.problems
            known = Signatures(self.world.files)
            changed = await self._survey(asyncio.to_thread(states.survey_now, self.patterns, known))
            self.problems = list(dict.fromkeys([*problems, *self.problems]))
        self._round += 1
        paths = list(self.world.files)[self._round % share :: share]
        return changed + await self.look(paths)

    async def look(self, paths: Iterable[str]) -> list[str]:
        """Look at some paths only; returns those that are news."""
        patterns = self.patterns
        wanted = [path for path in paths if any(pattern.values(path) is not None for pattern in patterns)]
        found = await self.states.look(wanted)
        changed = [path for path, signature in found.items() if self.world.see(path, signature)]
        there = [path for path in changed if found[path] is not None]
        self.unknown.update(there)
        self.distrusted.update(there)
        return changed

    async def settle(self, *, store: bool = True) -> list[str]:
        """Read all files whose content is not known; returns those whose content is news."""
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
            chunk = paths[start : start + 2000]
            for path, seen in (await self.states.contents(chunk)).items():
                fact = self.world.files.get(path)
                if seen is None or fact is None:
                    self.distrusted.add(path)
                    self.unknown.add(path)
                    continue
                if fact.content != seen.content or not fact.known:
                    news.append(path)
                fact.signature = fact.known = seen.signature
                fact.content, fact.size = seen.content, seen.size
                if path in self.distrusted:
                    continue
                maker = self._maker(path)
                if maker is None or maker[0].scatter:
                    sources.append((path, seen.signature, seen.size, seen.content))
                elif (record := self.world.records[maker[0].name].get(maker[1])) and record.content == seen.content:
                    outputs.setdefault(maker[0].name, []).append((maker[1], seen.signature))
        if store and sources:
            await rows.keep_files(self.database, self.pipeline.name, sources)
        for stage, touched in outputs.items() if store else ():
            await self.database.fetch(
                rows.TOUCH_STATES, self.pipeline.name, stage, [entity for entity, _ in touched],
                [signature for _, signature in touched],
            )  # fmt: skip
        return news

    async def reread_distrusted(self) -> list[str]:
        """Look once more at files that were changed just before they were read."""
        again, self.distrusted = sorted(self.distrusted), set()
        await self.look(again)
        self.distrusted = set()
        return await self.read([path for path in again if path in self.world.files])

    def _maker(self, path: str) -> tuple[Stage, str] | None:
        """The stage and the entity that a path is an output of."""
        for stage in self.order:
            found = stage.output.match(path)
            if found is not None:
                if stage.scatter or any(name not in found for name in stage.variables):
                    return stage, ""
                return stage, entity_id([found[name] for name in stage.variables]) if stage.variables else ""
        return None

    def plan(self, changed: Iterable[str] | None = None) -> Plan:
        """The plan for everything, or for those whom a change of these paths concerns."""
        only: dict[str, set[str] | None] | None = None
        if changed is not None:
            paths = list(changed)
            only = {stage.name: touched_entities(stage, paths) for stage in self.order}
            only = {stage: entities for stage, entities in only.items() if entities is None or entities}
        plan = make_plan(self.order, self.world, self.now(), only=only, busy=self.busy)
        if self.problems:
            plan.orphans = []  # What could not be looked at is not gone.
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

    def due_retries(self) -> list[str]:
        """The outputs of states whose failure is due to be tried again."""
        now = self.now()
        return [
            stage.quick_path(entity)
            for stage in self.order
            if not stage.scatter
            for entity, failure in self.world.failures[stage.name].items()
            if failure.retry_at is not None and failure.retry_at <= now and stage.quick_path(entity) not in self.busy
        ]

    async def keep_codes(self) -> None:
        """Have the database remember what the stages' code is made of."""
        codes = [(stage.name, stage.code.total, stage.code.parts) for stage in self.order]
        await rows.keep_codes(self.database, self.pipeline.name, codes)
        for stage, code, parts in codes:
            self.world.codes[stage, code] = parts


def give_back_memory() -> None:
    """A look at everything needs more for a moment than what is known afterwards: the rest goes back to the system."""
    gc.collect()
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # not with every C library
            ctypes.CDLL(None).malloc_trim(0)


def open_states(pipeline: Pipeline, database: Database) -> States:
    """The place where a pipeline's states are."""
    if pipeline.store is None:
        return FileStates(pipeline.root)
    return pipeline.store.open(database)
