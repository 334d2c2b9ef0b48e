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

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.pipelines import reasons
from tidemill.pipelines.commit import Committed, Committer, finish_intents
from tidemill.pipelines.lines import StageLine
from tidemill.pipelines.log import log
from tidemill.pipelines.looker import Looker
from tidemill.pipelines.manifests import Manifests
from tidemill.pipelines.model import Pipeline, Stage
from tidemill.pipelines.plan import Adoption, Plan, Step
from tidemill.pipelines.staleness import Failure, Record, input_key, input_pairs
from tidemill.pipelines.states import StoreTrouble
from tidemill.store import states as rows
from tidemill.store.database import Database

#: Has steps built elsewhere, and says which of them it took on.
Dispatch = Callable[[Stage, Sequence[Step]], Any]


class Driver(Looker):
    """One pipeline, looked at and acted upon."""

    def __init__(
        self,
        database: Database,
        pipeline: Pipeline,
        *,
        dispatch: Dispatch | None = None,
        on_result: Callable[[], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(database, pipeline, clock=clock)
        self.builder = f"{socket.gethostname()}:{os.getpid()}"
        self.trouble: str | None = None
        self.in_flight: dict[tuple[str, str], int] = {}  # builds elsewhere, and their jobs
        self.committer = Committer(database, self.states, pipeline.name, self.builder)
        self.manifests = Manifests(pipeline, self.states, self.world)
        self.idle = asyncio.Event()
        self.idle.set()
        self._dispatch = dispatch
        self._on_result = on_result
        self._lines: dict[str, StageLine] = {}

    # -- learning -----------------------------------------------------------------------------------

    async def reload(self) -> None:
        """Learn anew what the database knows, without forgetting what is known of the files."""
        world, stages = self.world, self.pipeline.stages
        world.records.clear()
        for row in await self.database.fetch(rows.LOAD_STATES, self.pipeline.name):
            if row["stage"] in stages and fits(stages[row["stage"]], row["entity"]):
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

    # -- acting -------------------------------------------------------------------------------------

    async def begin(self) -> Plan:
        """Look at everything for the first time, and finish what others have left behind."""
        await self.look_around()
        await self.keep_codes()
        await self.settle()
        await self.finish_intents()
        return self.plan()

    async def finish_intents(self) -> None:
        """Finish builds whose builders died after their result was in place."""
        by_stage: dict[str, dict[str, tuple[str, int, int]]] = {}
        for name, entity in self.intents:
            stage = self.pipeline.stages[name]
            record = self.world.records[name][entity]
            paths = list(input_pairs(record.content)) if stage.scatter else [stage.quick_path(entity)]
            fact = self.world.files.get(paths[0]) if len(paths) == 1 else None
            if fact is not None and fact.content != record.content:
                by_stage.setdefault(name, {})[entity] = (fact.content, fact.size, fact.signature)
        self.intents.clear()
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


def fits(stage: Stage, entity: str) -> bool:
    """Whether an entity can be one of a stage's; it may be from when the stage had another pattern."""
    try:
        return stage.scatter != () or bool(stage.quick_path(entity))
    except ConfigError:
        return False


def _record(row: Any) -> Record:
    return Record(row["content"], row["code"], row["inputs"], row["size"], row["version"], row["invalid_by"])


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
