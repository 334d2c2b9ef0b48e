"""Drives one pipeline: scan, plan, build, repeat.

The driver is the imperative shell around `make_plan`. Its view knows the files and the database; the driver passes the
planned steps to its builders, and plans affected states again when something was built or has changed.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.codec import decode
from tidemill.core.encoding.sealing import loggable
from tidemill.core.errors import PayloadError
from tidemill.engine.containment.crash_record import crash_record
from tidemill.engine.event_wait import wait_for_event
from tidemill.pipelines.definition.pipeline import Pipeline, Stage
from tidemill.pipelines.reducer.facts import PipelineControl, PipelineFacts
from tidemill.pipelines.reducer.plan import Adoption, BuildPlan, BuildStep
from tidemill.pipelines.reducer.reasons import CodeChanged, NeedsApproval
from tidemill.pipelines.reducer.staleness import StateRecord, input_key, input_pairs
from tidemill.pipelines.runner.build_containment import BuildContainment
from tidemill.pipelines.runner.build_session import BuildSession
from tidemill.pipelines.runner.build_trace import read_traces
from tidemill.pipelines.runner.commit import Build, CommitBatch, Committed, finish_intents
from tidemill.pipelines.runner.deferred_plans import DeferredPlans
from tidemill.pipelines.runner.local_builder import LocalBuilder
from tidemill.pipelines.runner.log import log
from tidemill.pipelines.runner.slots import Slots
from tidemill.pipelines.stores.manifest_writer import Manifests
from tidemill.pipelines.view.output_check import check_outputs
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.database import Database
from tidemill.store.states import states as rows
from tidemill.store.states.leases import (
    Wanted,
    find_changed,
    list_alive,
    list_leases,
    release_leases,
    take_leases,
)
from tidemill.store.states.requests import ask_approval

#: Seconds after which the leases of other builders are read again: no notification tells of a builder that dies.
LOOK_AGAIN = 2.0
#: Seconds of waiting for other builders after which a warning names them.
WARN_AFTER = 10.0
#: How many times longer it takes to read what others did to a state than to read a state among all.
ALONE = 8

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
        #: Steps and adoptions, by stage, whose states another builder has leased or has built meanwhile.
        self.elsewhere: dict[str, dict[str, BuildStep | Adoption]] = {}
        self.manifests = Manifests(pipeline, self.pipeline_view.states, self.world)
        self.idle = asyncio.Event()
        self.idle.set()
        self._database = database
        self._dispatch = dispatch
        self._on_build_ended = on_build_ended
        self._lines: dict[str, LocalBuilder] = {}
        self._slots = Slots(database)
        self._containment = containment or BuildContainment(crash_record())
        self._news = asyncio.Event()  # Another builder has ended a build.
        self._is_closing = False
        self._deferred = DeferredPlans(self.pipeline_view, self.act, self._note_end)
        self._session = BuildSession(database, self.builder, self._hear)

    @property
    def world(self) -> PipelineFacts:
        """Everything that is known about the pipeline's states and their files."""
        return self.pipeline_view.world

    # -- facts --------------------------------------------------------------------------------------

    async def begin(self) -> BuildPlan:
        """Scan everything for the first time, and delete what dead builders have left."""
        await self.pipeline_view.measure_clocks()
        await self.pipeline_view.read_all()
        self.pipeline_view.require_place()
        await self.sweep()
        await self.pipeline_view.keep_codes()
        await self.pipeline_view.read_unknown()
        return self.pipeline_view.plan()

    async def look_again(self) -> BuildPlan:
        """Read everything again: another builder has built much of it."""
        self.pipeline_view.require_place()
        for records in self.world.records.values():
            records.clear()  # Rows may have been deleted.
        await self.pipeline_view.read_all()
        await self.pipeline_view.read_unknown()
        return self.pipeline_view.plan()

    async def sweep(self) -> None:
        """Delete what dead builders have left."""
        await self.pipeline_view.states.sweep(self.pipeline_view.folders, partial(list_alive, self._database))

    async def read_builds(self, stage: Stage, entities: Iterable[str]) -> list[str]:
        """Read what a worker has done to these states; returns the affected paths."""
        wanted, name = list(entities), self.pipeline.name
        records, failures = self.world.records[stage.name], self.world.failures[stage.name]
        paths = self._scattered(stage, wanted)
        found = await self.pipeline_view.reload_some(stage, wanted)
        paths |= self._scattered(stage, wanted)
        failed = await self._database.fetch(rows.LOAD_SOME_FAILURES, name, stage.name, wanted)
        for entity in wanted:
            failures.pop(entity, None)
        for row in failed:
            self.pipeline_view.take_failure(row)
        if not stage.scatter:
            paths |= {stage.quick_path(entity) for entity in wanted}
        await self.pipeline_view.refresh(paths)
        for entity, signature in found.items() if not stage.scatter else ():
            fact, record = self.world.files.get(stage.quick_path(entity)), records.get(entity)
            if record is not None and fact is not None and fact.signature == signature:
                fact.known, fact.content, fact.size = signature, record.content, record.size
        await self.pipeline_view.read_unknown()
        self.release(stage.name, wanted)  # A plan for all states may be made at any moment: it finds all of this.
        self.manifests.note(stage, [entity for entity in wanted if entity in records and records[entity].content])
        return sorted(paths)

    def _scattered(self, stage: Stage, entities: Iterable[str]) -> set[str]:
        """The outputs of states that have many."""
        records = self.world.records[stage.name]
        known = [records[entity] for entity in entities if stage.scatter and entity in records]
        return {path for record in known for path in input_pairs(record.content)}

    async def note_lost(self, stage: Stage, lost: Mapping[str, Any]) -> None:
        """Record builds as failed whose jobs were ended by a watchdog or a person."""
        if not lost:
            return
        steps = {step.entity: step for step in self.pipeline_view.plan().builds if step.stage is stage}
        failures = []
        for entity, row in lost.items():
            errors = decode(row["errors"]) if row["errors"] else []
            error = errors[-1].get("message", "") if errors else row["note"] or ""
            if (step := steps.get(entity)) is not None:
                failures.append(
                    rows.NewFailure(
                        entity, stage.code.total, input_key(step.inputs), f"its job {row['state']}: {error}", "", 0.0,
                        str(step.reason), step.version,
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
        plan = await check_outputs(self.pipeline_view, plan)
        while known := await self.manifests.recognise(plan):
            await self._adopt(known)
            # Their consumers can be recognised now.
            plan = await check_outputs(self.pipeline_view, self.pipeline_view.plan())
        await self._adopt(plan.adoptions)
        await self._forget_failures(plan.past_failures)
        await self._ask_approval(plan.holds)
        by_stage: dict[str, list[BuildStep]] = {}
        for step in plan.builds:
            by_stage.setdefault(step.stage.name, []).append(step)
        for name, steps in by_stage.items():
            stage = self.pipeline.stages[name]
            self.pipeline_view.busy.update((self.pipeline_view.output_key(name, step.entity), name) for step in steps)
            if stage.options.in_process or self._dispatch is None:
                if not self._is_closing:  # Nothing would wait for the builds of another stage.
                    self.idle.clear()
                    self._line(stage).put(steps)
            else:
                for step, job in zip(steps, await self._dispatch(stage, steps), strict=True):
                    self.in_flight[name, step.entity] = job
        self._deferred.start()
        if self._deferred.is_active:
            self.idle.clear()

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
        if not self.pipeline_view.busy:
            self._deferred.note_settled()

    async def _forget_failures(self, past: Sequence[tuple[Stage, str]]) -> None:
        """Clear failures of states whose inputs were removed."""
        by_stage: dict[str, list[str]] = {}
        for stage, entity in past:
            by_stage.setdefault(stage.name, []).append(entity)
            self.world.failures[stage.name].pop(entity, None)
        for name, entities in by_stage.items():
            await rows.forget_failures(self._database, self.pipeline.name, name, entities)

    async def _ask_approval(self, holds: Sequence[BuildStep]) -> None:
        """Record which code waits for approval, for builds of new inputs leave fewer states to it than its limit."""
        asking = {
            step.stage
            for step in holds
            if isinstance(step.reason, NeedsApproval) and isinstance(step.reason.because, CodeChanged)
        }
        for stage in asking:
            control = self.world.controls.get(stage.name, PipelineControl())
            if control.approved_code != stage.code.total:
                await ask_approval(self._database, self.pipeline.name, stage.name, stage.code.total)
                self.world.controls[stage.name] = PipelineControl(control.paused_by, stage.code.total)

    async def _adopt(self, adoptions: Sequence[Adoption]) -> None:
        """Record outputs as built as they were found."""
        by_stage: dict[str, list[Adoption]] = {}
        for each in adoptions:
            by_stage.setdefault(each.stage.name, []).append(each)
        for name, found in by_stage.items():
            code = self.pipeline.stages[name].code.total
            states = [(a.entity, a.content, code, a.inputs, a.size, a.signature, a.version) for a in found]
            versions = await rows.adopt_states(
                self._database, self.pipeline.name, name, states, by=self.builder, holder=self._session.holder
            )
            if others := {each.entity: each for each in found if each.entity not in versions}:
                held = await self._leased_elsewhere()
                waiting = {entity: each for entity, each in others.items() if (name, entity) in held}
                self.elsewhere.setdefault(name, {}).update(waiting)
                await self.read_builds(self.pipeline.stages[name], list(others))
            for each in found:
                if each.entity in versions:
                    record = StateRecord(each.content, code, each.inputs, each.size, versions[each.entity])
                    self.world.learn(name, each.entity, record)

    @property
    def running_here(self) -> int:
        """How many builds run in this process."""
        return sum(line.running for line in self._lines.values())

    def _line(self, stage: Stage) -> LocalBuilder:
        if stage.name not in self._lines:
            self._lines[stage.name] = LocalBuilder(
                stage, self.pipeline_view.states, self.world, self._claim, self._commit, self._note_break, self._slots,
                self._containment,
            )  # fmt: skip
        return self._lines[stage.name]

    # -- other builders -----------------------------------------------------------------------------

    async def _claim(self, stage: Stage, steps: Sequence[BuildStep]) -> list[BuildStep]:
        """Lease states; returns those to build here. The others are built elsewhere, or were built meanwhile."""
        holder, name = await self._session.open(), self.pipeline.name
        self.pipeline_view.states.builder = holder.id
        wanted = [Wanted(step.entity, step.version, input_key(step.inputs)) for step in steps]
        leased = await take_leases(self._database, name, stage.name, stage.code.total, holder, wanted)
        if leased.is_paused:
            return await self._drop_paused(stage, steps)
        mine = [step for step in steps if step.entity in leased.granted]
        if leased.intents:
            finished = await finish_intents(
                self._database, self.pipeline_view.states, mine, leased.intents, self.world,
                pipeline=name, by=self.builder, holder=holder,
            )  # fmt: skip
            if finished:
                await self._after(stage, [step for step in mine if step.entity in finished])
                mine = [step for step in mine if step.entity not in finished]
        await read_traces(self._database, name, mine)
        line = self._lines[stage.name]
        others = {step.entity: step for step in steps if step.entity in leased.elsewhere | leased.outdated}
        if others:
            # Another builder has been here: a statement or two tell of all that it has built and builds now.
            others |= await self._withdraw(stage, line, built=bool(leased.outdated), leased=bool(leased.elsewhere))
            # They are read when there is nothing else to do: until then their consumers are likely to be built, too.
            self.elsewhere.setdefault(stage.name, {}).update(others)
            line.release(others)
        if leased.elsewhere:
            line.skip_ahead()
        if len(mine) < len(steps):
            self._note_end()
        return mine

    async def _drop_paused(self, stage: Stage, steps: Sequence[BuildStep]) -> list[BuildStep]:
        """Take back all steps of a stage that is paused; they are planned when it is resumed. Returns none."""
        await self.pipeline_view.load_requests()
        line = self._lines[stage.name]
        dropped = [step.entity for step in (*steps, *line.left)]
        line.withdraw(dropped)
        self.release(stage.name, dropped)
        await self.act(self.pipeline_view.plan())  # It may have been resumed meanwhile.
        self._note_end()
        return []

    async def _withdraw(self, stage: Stage, line: LocalBuilder, *, built: bool, leased: bool) -> dict[str, BuildStep]:
        """Take back steps that have not started, and that another builder has built or leased; returns them."""
        left, found = {step.entity: step for step in line.left}, set[str]()
        if built:
            known = [(entity, step.version) for entity, step in left.items()]
            found |= await find_changed(self._database, self.pipeline.name, stage.name, known)
            self._news.set()
        if leased:
            found |= left.keys() & {entity for name, entity in await self._leased_elsewhere() if name == stage.name}
        line.withdraw(found)
        return {entity: left[entity] for entity in found}

    async def _after(self, stage: Stage, steps: Sequence[BuildStep | Adoption]) -> None:
        """Read what another builder has done to states, and plan them and their consumers again."""
        inputs = [path for step in steps for group in step.paths for path in group]
        await self.pipeline_view.refresh(inputs)
        paths = await self.read_builds(stage, [step.entity for step in steps])
        await self.act(self.pipeline_view.plan() if stage.scatter else self.pipeline_view.plan([*inputs, *paths]))

    @property
    def waits_elsewhere(self) -> bool:
        """Whether another builder has leased, or has built, a state that is out of date here."""
        return any(self.elsewhere.values())

    async def check_elsewhere(self) -> None:
        """Go on with states that other builders no longer lease: built, failed, or left by a builder that died."""
        if not self.waits_elsewhere:
            return
        held, free = await self._leased_elsewhere(), dict[str, list[BuildStep | Adoption]]()
        for name, waiting in self.elsewhere.items():
            free[name] = [step for entity, step in waiting.items() if (name, entity) not in held]
            for step in free[name]:
                del waiting[step.entity]
        if self.idle.is_set() and not self.in_flight and ALONE * sum(map(len, free.values())) > len(self.world.files):
            for name, steps in free.items():
                self.release(name, [step.entity for step in steps])
            await self.act(await self.look_again())
            return
        for name, steps in free.items():
            if steps:
                await self._after(self.pipeline.stages[name], steps)

    async def _leased_elsewhere(self) -> set[tuple[str, str]]:
        """The states that other builders have leased, by stage and entity."""
        own = self._session.holder.lock
        found = await list_leases(self._database, self.pipeline.name)
        return {(row["stage"], row["entity"]) for row in found if row["lock"] != own}

    async def finish(self) -> None:
        """Wait until nothing is left to build, here or by other builders that have leased a state."""
        loop = asyncio.get_running_loop()
        warn_at = loop.time() + WARN_AFTER
        while True:
            if not self.idle.is_set():
                await self.idle.wait()
                warn_at = loop.time() + WARN_AFTER
            self.check()
            if not self.waits_elsewhere:
                return
            if loop.time() >= warn_at:
                await self._warn_waiting()
                warn_at = math.inf
            await wait_for_event(self._news, LOOK_AGAIN)
            self._news.clear()
            await self.check_elsewhere()

    async def _warn_waiting(self) -> None:
        """Name the builders whose builds this process waits for."""
        own = self._session.holder.lock
        held = [row for row in await list_leases(self._database, self.pipeline.name) if row["lock"] != own]
        builders = sorted({row["builder"] for row in held})
        log.warning("waiting for other builders", pipeline=self.pipeline.name, states=len(held), builders=builders)

    def _hear(self, payload: str) -> None:
        try:
            change: rows.StatesChanged = decode(payload, rows.StatesChanged)
        except PayloadError:
            return
        if change.pipeline == self.pipeline.name and change.by != self.builder:
            self._news.set()
            if self.waits_elsewhere:
                self._on_build_ended()

    # -- results ------------------------------------------------------------------------------------

    async def _commit(self, stage: Stage, builds: Sequence[Build]) -> None:
        """Publish results of a local builder, and plan their consumers."""
        batch = CommitBatch(
            self._database, self.pipeline_view.states, self.pipeline.name, self.builder, stage, self.world
        )
        news = await batch.commit(builds)
        self._log(stage, news)
        self.manifests.note(stage, news.done)
        if news.overtaken:
            await self._reread_overtaken(stage, [step for step, _ in builds if step.entity in set(news.overtaken)])
        self.release(stage.name, [step.entity for step, _ in builds])
        await self._follow(stage, news)
        self._note_end()

    async def _reread_overtaken(self, stage: Stage, steps: Sequence[BuildStep]) -> None:
        """Read states whose builds were refused: what is known of them differs from the database or from the files."""
        entities = [step.entity for step in steps]
        await release_leases(self._database, self.pipeline.name, stage.name, self._session.holder, entities)
        await self.pipeline_view.reload_some(stage, entities)
        outputs = self._scattered(stage, entities) if stage.scatter else {stage.quick_path(each) for each in entities}
        inputs = [path for step in steps for group in step.paths for path in group]
        await self.pipeline_view.refresh([*inputs, *outputs])
        await self.pipeline_view.read_unknown()

    async def _follow(self, stage: Stage, news: Committed) -> None:
        """Plan the consumers of new results, and rejected builds again."""
        # A request that arrived while they were built has removed their failures, and was not planned then.
        again = {each for each in news.failed if each not in self.world.failures[stage.name]}.union(news.overtaken)
        ended = (*news.done, *again)
        outputs = self._scattered(stage, ended) if stage.scatter else [stage.quick_path(entity) for entity in ended]
        paths = list(dict.fromkeys((*news.changed, *outputs)))
        if paths or again:
            await self.act(self.pipeline_view.plan(paths, {stage.name: again}))

    def _log(self, stage: Stage, news: Committed) -> None:
        if news.failed:
            failure = self.world.failures[stage.name].get(news.failed[0])
            log.warning(
                "builds failed", pipeline=self.pipeline.name, stage=stage.name, states=len(news.failed),
                first=news.failed[0], error=loggable(failure.error) if failure else "",
            )  # fmt: skip
        if news.done:
            log.info("built", pipeline=self.pipeline.name, stage=stage.name, states=len(news.done))

    def _note_end(self) -> None:
        self._on_build_ended()
        if not self._deferred.is_active and not any(line.taken for line in self._lines.values()):
            self.idle.set()

    def _note_break(self) -> None:
        """Wake waiters: a local builder has failed."""
        self._on_build_ended()
        self.idle.set()

    def check(self) -> None:
        """Raise the error of a local builder or of planning, such as an unavailable database."""
        self._deferred.check()
        for line in self._lines.values():
            line.check()

    async def close(self) -> None:
        """Wait for running builds, and write what is left to write."""
        self._is_closing = True
        await self._deferred.close()
        ended = await asyncio.gather(*(line.close() for line in self._lines.values()), return_exceptions=True)
        await self._session.close()
        await self.manifests.flush()
        for broken in ended:
            if broken is not None:
                raise broken


async def run_once(driver: Driver) -> BuildPlan:
    """Bring a pipeline up to date in this process; returns the remaining plan: failures, waits and holds."""
    try:
        await driver.act(await driver.begin())
        await driver.finish()
    finally:
        await driver.close()
    driver.pipeline_view.require_place()
    return driver.pipeline_view.plan()
