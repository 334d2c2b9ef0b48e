"""Driving one pipeline: look, decide, have things built, look again.

The driver is the shell around `make_plan`. It loads what the database knows, surveys the files, reads those whose
signature is news, and hands what the plan asks for to its builders; when something was built or has changed, it plans
again for whom it concerns.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.pipelines import reasons
from tidemill.pipelines.commit import Committed, Committer, finish_intents
from tidemill.pipelines.files import FileStates
from tidemill.pipelines.lines import StageLine
from tidemill.pipelines.manifests import Manifests
from tidemill.pipelines.model import Pipeline, Stage, check_order
from tidemill.pipelines.pattern import Pattern, entity_id
from tidemill.pipelines.plan import Adoption, Plan, Step, make_plan
from tidemill.pipelines.staleness import Failure, Record, input_key, input_pairs
from tidemill.pipelines.states import States, StoreTrouble, Survey
from tidemill.pipelines.world import Control, FileFact, World, touched_entities
from tidemill.store import states as rows
from tidemill.store.database import Database

log = structlog.get_logger("tidemill.pipelines")

#: Has steps built elsewhere, and says which of them it took on.
Dispatch = Callable[[Stage, Sequence[Step]], Any]


class Driver:
    """One pipeline, and everything that is known about it."""

    def __init__(
        self,
        database: Database,
        pipeline: Pipeline,
        *,
        dispatch: Dispatch | None = None,
        on_result: Callable[[], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.database = database
        self.pipeline = pipeline
        self.states: States = open_states(pipeline, database)
        self.order = check_order(pipeline.stages.values())
        self.world = World()
        self.builder = f"{socket.gethostname()}:{os.getpid()}"
        self.problems: list[str] = []
        self.trouble: str | None = None
        self.in_flight: dict[tuple[str, str], int] = {}  # builds elsewhere, and their jobs
        self.busy: dict[str, str] = {}  # outputs that are being built here or elsewhere, and their stages
        self.distrusted: set[str] = set()
        self.folders: dict[str, int] = {}
        self._round = 0
        self.committer = Committer(database, self.states, pipeline.name, self.builder)
        self.manifests = Manifests(pipeline, self.states, self.world)
        self.idle = asyncio.Event()
        self.idle.set()
        self._dispatch = dispatch
        self._on_result = on_result
        self._clock = clock
        self._skew = 0.0
        self._intents: list[tuple[str, str]] = []
        self._lines: dict[str, StageLine] = {}

    @property
    def patterns(self) -> list[Pattern]:
        """Everything that is worth looking at."""
        found = [one.pattern for stage in self.order for one in stage.inputs]
        return list(dict.fromkeys([*found, *(stage.output for stage in self.order)]))

    # -- looking ------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Learn all that the database knows."""
        name, world = self.pipeline.name, self.world
        files = world.files
        stages = self.pipeline.stages
        for row in await self.database.fetch(rows.LOAD_FILES, name):
            files[row["path"]] = FileFact(0, row["signature"], row["content"], row["size"])
        codes: dict[str, str] = {}
        self._intents.clear()
        for (
            stage,
            entity,
            content,
            code,
            inputs,
            size,
            signature,
            version,
            built_at,
            invalid_by,
            intent,
        ) in await self.database.fetch(rows.LOAD_STATES, name):
            if stage not in stages:
                continue
            code = codes.setdefault(code, code)
            world.records[stage][entity] = Record(content, code, inputs, size, version, built_at or 0.0, invalid_by)
            if intent is not None:
                self._intents.append((stage, entity))
            if signature and not stages[stage].scatter:
                files[stages[stage].quick_path(entity)] = FileFact(0, signature, content, size)
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

    async def reload(self) -> None:
        """Learn anew what the database knows, without forgetting what is known of the files."""
        world, stages = self.world, self.pipeline.stages
        world.records.clear()
        for row in await self.database.fetch(rows.LOAD_STATES, self.pipeline.name):
            if row["stage"] in stages:
                world.records[row["stage"]][row["entity"]] = _record(row)
        await self.load_wishes()

    async def learn(self, stage: Stage, entities: Iterable[str]) -> list[str]:
        """What a builder elsewhere has done to these states; returns the paths that it concerns."""
        wanted = list(entities)
        records, failures = self.world.records[stage.name], self.world.failures[stage.name]
        paths: list[str] = []
        found = await self.database.fetch(rows.LOAD_SOME, self.pipeline.name, stage.name, wanted)
        for row in found:
            record = records[row["entity"]] = _record(row)
            if stage.scatter:
                paths += input_pairs(record.content)
        for entity in wanted:
            failures.pop(entity, None)
        for row in await self.database.fetch(rows.LOAD_SOME_FAILURES, self.pipeline.name, stage.name, wanted):
            values = dict(row)
            del values["stage"]
            failures[values.pop("entity")] = msgspec.convert(values, Failure)
        self.release(stage.name, wanted)
        if not stage.scatter:
            paths += [stage.quick_path(entity) for entity in wanted]
        await self.look(paths)
        await self.settle()
        self.manifests.note(stage, [entity for entity in wanted if entity in records and records[entity].content])
        return paths

    async def note_lost(self, stage: Stage, lost: Mapping[str, Any]) -> None:
        """Builds whose jobs were ended by somebody else, a watchdog or a person, have failed."""
        failures = []
        steps = {step.entity: step for step in self.plan().builds if step.stage is stage} if lost else {}
        for entity, row in lost.items():
            errors = decode(row["errors"]) if row["errors"] else []
            told = errors[-1].get("message", "") if errors else row["note"] or ""
            step = steps.get(entity)
            if step is not None:
                failures.append(
                    rows.NewFailure(
                        entity, stage.code.total, input_key(step.inputs), f"its job {row['state']}: {told}", "", 0.0,
                        str(step.reason),
                    )
                )  # fmt: skip
        if failures:
            await rows.fail_states(
                self.database, self.pipeline.name, stage.name, failures, builder=self.builder,
                waits=stage.options.backoff,
            )  # fmt: skip
            await self.load_wishes()

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

    async def survey(self) -> list[str]:
        """Look at all files; returns the paths that are news."""
        return self.take_survey(await self.states.survey(self.patterns))

    def take_survey(self, survey: Survey) -> list[str]:
        """What a look at all files has found becomes what is known."""
        files, found = self.world.files, survey.signatures
        changed: list[str] = []
        for path, signature in found.items():
            fact = files.get(path)
            if fact is None:
                files[path] = FileFact(signature)
                changed.append(path)
            elif fact.signature != signature:
                changed.append(path)
                # The same number twice needs its memory once.
                fact.signature = fact.known if fact.known == signature else signature
        if len(files) != len(found):
            for path in [path for path in files if path not in found]:
                if files.pop(path).signature:
                    changed.append(path)
        self.world.matched = survey.matched
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
            known = {path: fact.signature for path, fact in self.world.files.items()}
            problems = self.problems
            changed = self.take_survey(await asyncio.to_thread(states.survey_now, self.patterns, known))
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
        self.distrusted.update(path for path in changed if found[path] is not None)
        return changed

    async def settle(self, *, store: bool = True) -> list[str]:
        """Read all files whose content is not known; returns those whose content is news."""
        files = self.world.files
        unknown = [path for path, fact in files.items() if fact.known != fact.signature]
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

    # -- deciding -----------------------------------------------------------------------------------

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

    # -- acting -------------------------------------------------------------------------------------

    async def begin(self) -> Plan:
        """Look at everything for the first time, and finish what others have left behind."""
        await self.load()
        await self.keep_codes()
        await self.survey()
        await self.settle()
        await self.finish_intents()
        return self.plan()

    async def finish_intents(self) -> None:
        """Finish builds whose builders died after their result was in place."""
        by_stage: dict[str, dict[str, tuple[str, int, int]]] = {}
        for name, entity in self._intents:
            stage = self.pipeline.stages[name]
            record = self.world.records[name][entity]
            paths = list(input_pairs(record.content)) if stage.scatter else [stage.quick_path(entity)]
            fact = self.world.files.get(paths[0]) if len(paths) == 1 else None
            if fact is not None and fact.content != record.content:
                by_stage.setdefault(name, {})[entity] = (fact.content, fact.size, fact.signature)
        self._intents.clear()
        for name, found in by_stage.items():
            stage = self.pipeline.stages[name]
            done = await finish_intents(self.database, self.pipeline.name, stage, found, by=self.builder)
            self.world.records[name].update(done)

    async def act(self, plan: Plan) -> None:
        """Do what a plan says: adopt, and have built."""
        plan = await self.manifests.recognise(plan, self)
        await self.adopt(plan.adoptions)
        by_stage: dict[str, list[Step]] = {}
        for step in plan.builds:
            by_stage.setdefault(step.stage.name, []).append(step)
        for name, steps in by_stage.items():
            stage = self.pipeline.stages[name]
            self.busy.update((self.output_key(name, step.entity), name) for step in steps)
            if stage.options.in_process or self._dispatch is None:
                self.idle.clear()
                self._line(stage).put(steps)
            else:
                for step, job in zip(steps, await self._dispatch(stage, steps), strict=True):
                    self.in_flight[name, step.entity] = job

    def release(self, stage: str, entities: Iterable[str]) -> None:
        """These are not being built any more."""
        for entity in entities:
            self.busy.pop(self.output_key(stage, entity), None)
            self.in_flight.pop((stage, entity), None)
        if stage in self._lines:
            self._lines[stage].release(entities)

    async def adopt(self, adoptions: Sequence[Adoption], code: str | None = None) -> None:
        """Take outputs as they were found."""
        by_stage: dict[str, list[Adoption]] = {}
        for each in adoptions:
            by_stage.setdefault(each.stage.name, []).append(each)
        for name, found in by_stage.items():
            code = self.pipeline.stages[name].code.total
            states = [(a.entity, a.content, code, a.inputs, a.size, a.signature) for a in found]
            versions = await rows.adopt_states(self.database, self.pipeline.name, name, states, by=self.builder)
            for each in found:
                record = Record(each.content, code, each.inputs, each.size, versions[each.entity])
                self.world.records[name][each.entity] = record

    def _line(self, stage: Stage) -> StageLine:
        if stage.name not in self._lines:
            self._lines[stage.name] = StageLine(stage, self.states, self.world, self._commit)
        return self._lines[stage.name]

    async def _commit(self, stage: Stage, results: Sequence[tuple[Step, Any]]) -> None:
        """Results of a line are put in place; who takes from them is looked at next."""
        entities = [step.entity for step, _ in results]
        try:
            news = await self.committer.commit(stage, results, self.world)
        except StoreTrouble as error:
            self.trouble = str(error)
            log.error("states cannot be written", pipeline=self.pipeline.name, stage=stage.name, error=str(error))
            self.release(stage.name, entities)
            self._check_idle()
            return
        self.release(stage.name, entities)
        self.trouble = None
        self._log(stage, news)
        self.manifests.note(stage, news.done)
        if news.overtaken:
            await self.look(
                [path for step, _ in results if step.entity in news.overtaken for g in step.paths for path in g]
            )
            await self.settle()
        await self.follow(stage, news)
        self._check_idle()

    async def follow(self, stage: Stage, news: Committed) -> None:
        """Look at those whom new results concern, and at what was overtaken."""
        paths = list(news.changed)
        if not stage.scatter:
            paths += [stage.quick_path(entity) for entity in (*news.done, *news.overtaken)]
        if paths or news.overtaken:
            await self.act(self.plan(paths if paths else None))

    def _log(self, stage: Stage, news: Committed) -> None:
        if news.failed:
            failure = self.world.failures[stage.name].get(news.failed[0])
            log.warning(
                "builds failed", pipeline=self.pipeline.name, stage=stage.name, states=len(news.failed),
                first=news.failed[0], error=failure.error if failure else "",
            )  # fmt: skip
        if news.done:
            log.info("built", pipeline=self.pipeline.name, stage=stage.name, states=len(news.done))

    def _check_idle(self) -> None:
        if self._on_result is not None:
            self._on_result()
        if not any(line.taken for line in self._lines.values()):
            self.idle.set()

    async def close(self) -> None:
        """Let what runs come to its end, and write what is left to write."""
        for line in self._lines.values():
            await line.close()
        await self.manifests.flush()

    # -- asking -------------------------------------------------------------------------------------

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


def _record(row: Any) -> Record:
    return Record(
        row["content"], row["code"], row["inputs"], row["size"], row["version"], row["built_at"] or 0.0,
        row["invalid_by"],
    )  # fmt: skip


def open_states(pipeline: Pipeline, database: Database) -> States:
    """The place where a pipeline's states are."""
    if pipeline.store is None:
        return FileStates(pipeline.root)
    return pipeline.store.open(database)


async def run_once(driver: Driver) -> Plan:
    """Bring a pipeline up to date in this process; returns the plan that is left: what failed, waits or is held."""
    try:
        await driver.act(await driver.begin())
        await driver.idle.wait()
    finally:
        await driver.close()
    return driver.plan()


def is_quiet(plan: Plan) -> bool:
    """Whether nothing is left to be done or waited for."""
    return not plan.builds and not any(isinstance(step.reason, reasons.Blocked) for step in plan.holds)
