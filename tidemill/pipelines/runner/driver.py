"""Drives one pipeline: scan, plan, build, repeat.

The driver is the imperative shell around `make_plan`. Its view knows the files and the database; the driver passes the
planned steps to its builders, and plans affected states again when something was built or has changed.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.engine.crash_record import crash_record
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer.facts import PipelineFacts
from tidemill.pipelines.reducer.plan import Adoption, BuildPlan, BuildStep
from tidemill.pipelines.reducer.staleness import StateRecord, input_key, input_pairs
from tidemill.pipelines.runner.build_containment import BuildContainment
from tidemill.pipelines.runner.commit import Build, CommitBatch, Committed, finish_intents
from tidemill.pipelines.runner.local_builder import LocalBuilder
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.runner.running_builds import BuildMarks
from tidemill.pipelines.runner.slots import Slots
from tidemill.pipelines.stores.manifest_writer import Manifests
from tidemill.pipelines.view.pipeline_view import PipelineView, record_of
from tidemill.store.database import Database
from tidemill.store.states import states as rows

#: Dispatches steps to be built elsewhere, and returns the id of each job.
Dispatch = Callable[[Stage, Sequence[BuildStep]], Awaitable[list[int]]]


class Driver:
    """Drives one pipeline."""

    def __init__(
        self,
        database: Database,
        pipeline: Pipeline,
        *,
        dispatch: Dispatch | None = None,
        on_build_ended: Callable[[], None] = lambda: None,
        clock: Clock = SYSTEM_CLOCK,
        containment: BuildContainment | None = None,
    ) -> None:
        """Without `dispatch`, builds run in this process; `on_build_ended` is called after each of them."""
        self.pipeline = pipeline
        self.pipeline_view = PipelineView(database, pipeline, clock=clock)
        self.builder = f"{socket.gethostname()}:{os.getpid()}"
        self.in_flight: dict[tuple[str, str], int] = {}  # builds by workers, and their jobs
        self.manifests = Manifests(pipeline, self.pipeline_view.states, self.world)
        self.idle = asyncio.Event()
        self.idle.set()
        self._database = database
        self._dispatch = dispatch
        self._on_build_ended = on_build_ended
        self._lines: dict[str, LocalBuilder] = {}
        self._slots = Slots(database)
        self._containment = containment or BuildContainment(crash_record())
        self._marks = BuildMarks(database, pipeline.name, self.builder, self._running, self.idle.is_set)

    @property
    def world(self) -> PipelineFacts:
        """Everything that is known about the pipeline's states and their files."""
        return self.pipeline_view.world

    # -- facts --------------------------------------------------------------------------------------

    async def begin(self) -> BuildPlan:
        """Scan everything for the first time, and finish interrupted builds of others."""
        await self.pipeline_view.measure_clocks()
        await self.pipeline_view.read_all()
        await self.pipeline_view.keep_codes()
        await self.pipeline_view.read_unknown()
        await self._finish_intents()
        return self.pipeline_view.plan()

    async def _finish_intents(self) -> None:
        """Finish builds whose builders died after they had published their result."""
        by_stage: dict[str, dict[str, tuple[str, int, int]]] = {}
        for name, entity in self.pipeline_view.intents:
            stage = self.pipeline.stages[name]
            record = self.world.records[name][entity]
            fact = None if stage.scatter else self.world.files.get(stage.quick_path(entity))
            if fact is not None and fact.content != record.content:
                by_stage.setdefault(name, {})[entity] = (fact.content, fact.size, fact.signature)
        self.pipeline_view.intents.clear()
        for name, found in by_stage.items():
            stage = self.pipeline.stages[name]
            done = await finish_intents(self._database, self.pipeline.name, stage, found, by=self.builder)
            self.world.records[name].update(done)

    async def read_builds(self, stage: Stage, entities: Iterable[str]) -> list[str]:
        """Read what a worker has done to these states; returns the affected paths."""
        wanted, name = list(entities), self.pipeline.name
        records, failures = self.world.records[stage.name], self.world.failures[stage.name]
        paths: set[str] = set()
        for row in await self._database.fetch(rows.LOAD_SOME, name, stage.name, wanted):
            before, record = records.get(row["entity"]), record_of(row)
            records[row["entity"]] = record
            if stage.scatter:
                paths |= input_pairs(record.content).keys() | (input_pairs(before.content).keys() if before else set())
        for entity in wanted:
            failures.pop(entity, None)
        for row in await self._database.fetch(rows.LOAD_SOME_FAILURES, name, stage.name, wanted):
            self.pipeline_view.take_failure(row)
        self.release(stage.name, wanted)
        if not stage.scatter:
            paths |= {stage.quick_path(entity) for entity in wanted}
        await self.pipeline_view.refresh(paths)
        await self.pipeline_view.read_unknown()
        self.manifests.note(stage, [entity for entity in wanted if entity in records and records[entity].content])
        return sorted(paths)

    async def note_lost(self, stage: Stage, lost: Mapping[str, Any]) -> None:
        """Record builds as failed whose jobs were ended by a watchdog or a person."""
        if not lost:
            return
        steps = {step.entity: step for step in self.pipeline_view.plan().builds if step.stage is stage}
        failures = []
        for entity, row in lost.items():
            errors = decode(row["errors"]) if row["errors"] else []
            told = errors[-1].get("message", "") if errors else row["note"] or ""
            if (step := steps.get(entity)) is not None:
                failures.append(
                    rows.NewFailure(
                        entity, stage.code.total, input_key(step.inputs), f"its job {row['state']}: {told}", "", 0.0,
                        str(step.reason),
                    )
                )  # fmt: skip
        if failures:
            await rows.fail_states(
                self._database, self.pipeline.name, stage.name, failures, builder=self.builder,
                waits=stage.options.backoff,
            )  # fmt: skip
            await self.pipeline_view.load_requests()

    # -- actions ------------------------------------------------------------------------------------

    async def act(self, plan: BuildPlan) -> None:
        """Carry out a plan: adopt and build states."""
        while known := await self.manifests.recognise(plan):
            await self._adopt(known)
            plan = self.pipeline_view.plan()  # Their consumers can be recognised now.
        await self._adopt(plan.adoptions)
        await self._forget_failures(plan.past_failures)
        by_stage: dict[str, list[BuildStep]] = {}
        for step in plan.builds:
            by_stage.setdefault(step.stage.name, []).append(step)
        for name, steps in by_stage.items():
            stage = self.pipeline.stages[name]
            self.pipeline_view.busy.update((self.pipeline_view.output_key(name, step.entity), name) for step in steps)
            if stage.options.in_process or self._dispatch is None:
                self.idle.clear()
                self._line(stage).put(steps)
                self._marks.begin()
            else:
                for step, job in zip(steps, await self._dispatch(stage, steps), strict=True):
                    self.in_flight[name, step.entity] = job

    def note_flight(self, stage: Stage, entity: str, job: int) -> None:
        """Record that a worker builds a state."""
        self.in_flight[stage.name, entity] = job
        self.pipeline_view.busy[self.pipeline_view.output_key(stage.name, entity)] = stage.name

    def release(self, stage: str, entities: Iterable[str]) -> None:
        """Record that these are no longer being built."""
        for entity in entities:
            self.pipeline_view.busy.pop(self.pipeline_view.output_key(stage, entity), None)
            self.in_flight.pop((stage, entity), None)
        if stage in self._lines:
            self._lines[stage].release(entities)

    async def _forget_failures(self, past: Sequence[tuple[Stage, str]]) -> None:
        """Clear failures of states whose inputs were removed."""
        by_stage: dict[str, list[str]] = {}
        for stage, entity in past:
            by_stage.setdefault(stage.name, []).append(entity)
            self.world.failures[stage.name].pop(entity, None)
        for name, entities in by_stage.items():
            await rows.forget_failures(self._database, self.pipeline.name, name, entities)

    async def _adopt(self, adoptions: Sequence[Adoption]) -> None:
        """Record outputs as built as they were found."""
        by_stage: dict[str, list[Adoption]] = {}
        for each in adoptions:
            by_stage.setdefault(each.stage.name, []).append(each)
        for name, found in by_stage.items():
            code = self.pipeline.stages[name].code.total
            states = [(a.entity, a.content, code, a.inputs, a.size, a.signature) for a in found]
            versions = await rows.adopt_states(self._database, self.pipeline.name, name, states, by=self.builder)
            for each in found:
                record = StateRecord(each.content, code, each.inputs, each.size, versions[each.entity])
                self.world.records[name][each.entity] = record

    @property
    def running_here(self) -> int:
        """How many builds run in this process."""
        return sum(len(line.running) for line in self._lines.values())

    def _running(self) -> Iterator[tuple[str, str, float]]:
        """The builds that run in this process: stage, entity, start."""
        for name, line in self._lines.items():
            for entity, since in line.running.items():
                yield name, entity, since

    def _line(self, stage: Stage) -> LocalBuilder:
        if stage.name not in self._lines:
            self._lines[stage.name] = LocalBuilder(
                stage, self.pipeline_view.states, self.world, self._commit, self._note_break, self._slots,
                self._containment,
            )  # fmt: skip
        return self._lines[stage.name]

    async def _commit(self, stage: Stage, builds: Sequence[Build]) -> None:
        """Publish results of a local builder, and plan their consumers."""
        batch = CommitBatch(
            self._database, self.pipeline_view.states, self.pipeline.name, self.builder, stage, self.world
        )
        news = await batch.commit(builds)
        self.release(stage.name, [step.entity for step, _ in builds])
        self._log(stage, news)
        self.manifests.note(stage, news.done)
        if news.overtaken:
            overtaken = set(news.overtaken)
            # Their facts differ from the database: builds based on them would be rejected forever.
            for row in await self._database.fetch(rows.LOAD_SOME, self.pipeline.name, stage.name, news.overtaken):
                self.world.records[stage.name][row["entity"]] = record_of(row)
            await self.pipeline_view.refresh(
                [path for step, _ in builds if step.entity in overtaken for group in step.paths for path in group]
            )
            await self.pipeline_view.read_unknown()
        await self._follow(stage, news)
        self._note_end()

    async def _follow(self, stage: Stage, news: Committed) -> None:
        """Plan the consumers of new results, and rejected builds again."""
        if stage.scatter and news.overtaken:
            await self.act(self.pipeline_view.plan())
            return
        paths = list(news.changed)
        if not stage.scatter:
            paths += [stage.quick_path(entity) for entity in (*news.done, *news.overtaken)]
        if paths:
            await self.act(self.pipeline_view.plan(paths))

    def _log(self, stage: Stage, news: Committed) -> None:
        if news.failed:
            failure = self.world.failures[stage.name].get(news.failed[0])
            log.warning(
                "builds failed", pipeline=self.pipeline.name, stage=stage.name, states=len(news.failed),
                first=news.failed[0], error=failure.error if failure else "",
            )  # fmt: skip
        if news.done:
            log.info("built", pipeline=self.pipeline.name, stage=stage.name, states=len(news.done))

    def _note_end(self) -> None:
        self._on_build_ended()
        if not any(line.taken for line in self._lines.values()):
            self.idle.set()

    def _note_break(self) -> None:
        """Wake waiters: a local builder has failed."""
        self._on_build_ended()
        self.idle.set()

    def check(self) -> None:
        """Raise the error of a local builder, such as an unavailable database."""
        for line in self._lines.values():
            line.check()

    async def close(self) -> None:
        """Wait for running builds, and write what is left to write."""
        ended = await asyncio.gather(*(line.close() for line in self._lines.values()), return_exceptions=True)
        await self._marks.close()
        await self.manifests.flush()
        for broken in ended:
            if broken is not None:
                raise broken


async def run_once(driver: Driver) -> BuildPlan:
    """Bring a pipeline up to date in this process; returns the remaining plan: failures, waits and holds."""
    try:
        await driver.act(await driver.begin())
        await driver.idle.wait()
        driver.check()
    finally:
        await driver.close()
    return driver.pipeline_view.plan()
