"""Publishes results: atomic per state, and only if its inputs are unchanged.

1. the contents are stored under hidden names, and synced;
2. the database records what is about to be published (the intent);
3. in one transaction that locks the states' rows: results that were overtaken, or whose inputs have changed, are
   dropped; the rest is renamed into place, becomes current in the database, and is notified. Outputs that a state no
   longer has are deleted.

A builder that dies between rename and commit leaves an output that matches its intent: the next one to lease the state
finishes the build (`finish_intents`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.facts import PipelineFacts
from tidemill.pipelines.reducer.plan import BuildStep
from tidemill.pipelines.reducer.reasons import Invalidated
from tidemill.pipelines.reducer.staleness import NOTHING, BuildFailure, StateRecord, input_key, input_pairs, input_text
from tidemill.pipelines.runner.build import Result, too_small
from tidemill.pipelines.runner.build_trace import keep_traces
from tidemill.pipelines.stores.base import Prepared, SeenFile, StateDraft, States, StateStoreError, hash_content
from tidemill.pipelines.stores.objects import ObjectStates
from tidemill.store.database import Database
from tidemill.store.states.contents import ReplacedContent, keep_contents
from tidemill.store.states.leases import LeaseHolder
from tidemill.store.states.states import (
    Built,
    NewFailure,
    NewState,
    StatesChanged,
    adopt_states,
    fail_states,
    lock_pending_writes,
    notify_states,
    promote,
    record_intent,
)

Build = tuple[BuildStep, Result]

#: Bytes of a state up to which its earlier contents are kept.
SMALL = 16 * 1024


class Committed(msgspec.Struct):
    """The result of a batch: new and removed paths, and states that are done, failed, or must be planned again."""

    changed: list[str] = []
    done: list[str] = []
    failed: list[str] = []
    overtaken: list[str] = []


class CommitBatch(msgspec.Struct, eq=False):
    """Results of one stage that are published together; `builder` is the process that publishes them."""

    database: Database
    states: States
    pipeline: str
    builder: str
    stage: Stage
    world: PipelineFacts
    prepared: dict[str, list[Prepared]] = {}
    committed: Committed = msgspec.field(default_factory=Committed)

    async def commit(self, builds: Sequence[Build]) -> Committed:
        """Publish results and store failures; updates the facts."""
        good = [build for build in builds if build[1].error is None]
        await self._prepare(good)
        await self._fail([build for build in builds if build[1].error is not None])
        good = await self._undisturbed([build for build in good if build[1].error is None])
        if good:
            try:
                await self._put_in_place(good)
            except BaseException:
                await self.states.discard([each for step, _ in good for each in self.prepared[step.entity]])
                raise
            await self._fail([build for build in good if build[1].error is not None])
        return self.committed

    async def _prepare(self, good: Sequence[Build]) -> None:
        """Store contents under hidden names; content in chunks may only fail now."""
        world, drafts = self.world, []
        for step, result in good:
            self.prepared[step.entity] = []
            for path, content in result.outputs.items():
                fact = world.files.get(path)
                before = None if fact is None else fact.signature
                same = _unchanged(world, path, content)
                if same is not None:
                    there = Prepared(path, *same, result.needs, step.entity, before)
                    self.prepared[step.entity].append(there)
                else:
                    drafts.append(StateDraft(path, content, result.needs, step.entity, before))
        for each in await self.states.prepare(drafts):
            self.prepared[each.entity].append(each)
        least = self.stage.options.min_size
        for step, result in good:
            for each in self.prepared[step.entity]:
                if each.error is None and each.size < least:
                    each.error = too_small(each.size, least)
                result.error = result.error or each.error
            if result.error is not None:
                await self.states.discard(self.prepared[step.entity])

    async def _undisturbed(self, builds: list[Build]) -> list[Build]:
        """Filter skipped and failed builds: they count only if their inputs are unchanged since their start.

        For all others that is checked when they are published.
        """
        unsure = [build for build in builds if not build[1].outputs or build[1].error is not None]
        if not unsure:
            return builds
        try:
            there = await self.states.read_signatures({path for _, result in unsure for path in result.needs})
        except StateStoreError:  # The store is away: a failure counts all the same.
            return builds
        disturbed = {
            step.entity
            for step, result in unsure
            if any(there[path] != needed for path, needed in result.needs.items())
        }
        self.committed.overtaken += disturbed
        return [build for build in builds if build[0].entity not in disturbed]

    async def _put_in_place(self, good: Sequence[Build]) -> None:
        database, pipeline, stage = self.database, self.pipeline, self.stage
        by, prepared = secrets.token_hex(8), self.prepared
        new = {step.entity: self._new_state(step) for step, _ in good}
        traces = {path: result.trace for _, result in good for path in result.outputs if result.trace is not None}
        await keep_traces(database, pipeline, traces)
        going = await record_intent(database, pipeline, stage.name, stage.code.total, by, list(new.values()))
        built: list[Built] = []
        async with database.transaction() as connection:
            held = await lock_pending_writes(
                database, connection, pipeline, stage.name, by, [new[entity] for entity in going]
            )
            replaced = await self._read_replaced(held)
            signatures = await self.states.publish([each for entity in held for each in prepared[entity]])
            gone: list[str] = []
            for step, result in good:
                mine = prepared[step.entity]
                result.error = next((each.error for each in mine if each.error is not None), None)
                if step.entity in held and all(each.path in signatures for each in mine):
                    try:
                        gone += await self._take_away(step.entity, held[step.entity])
                    except OSError as error:
                        result.error = f"an earlier output cannot be moved away: {error}"
                        continue
                    alone = signatures[mine[0].path] if len(mine) == 1 else 0
                    outcome = _outcome(mine)
                    built.append(Built(step.entity, alone, result.took, outcome, str(step.reason), result.log or None))
            versions = await promote(database, connection, pipeline, stage.name, self.builder, built)
            changed = [each.path for one in built if one.outcome == "built" for each in prepared[one.entity]]
            changed += gone
            if earlier := [each for each in replaced if each.entity in versions]:
                await keep_contents(database, connection, pipeline, stage.name, earlier)
            news = StatesChanged(pipeline, self.builder, stage.name, list(versions), changed)
            await notify_states(database, connection, news)
        await self.states.discard([each for entity in new if entity not in versions for each in prepared[entity]])
        for step, result in good:
            if result.error is not None:
                del new[step.entity]
        self._learn(new, versions, signatures, gone)
        self.committed.changed += changed

    async def _read_replaced(self, entities: Iterable[str]) -> list[ReplacedContent]:
        """The contents of small outputs that are about to be replaced, where reading them costs little."""
        if isinstance(self.states, ObjectStates):
            return []
        found: list[ReplacedContent] = []
        for entity in entities:
            for each in self.prepared[entity]:
                fact = self.world.files.get(each.path)
                if each.held is None or fact is None or fact.content == each.content or fact.size > SMALL:
                    continue
                try:
                    content = await self.states.read(each.path)
                except OSError:
                    continue
                if len(content) <= SMALL:
                    found.append(ReplacedContent(entity, each.path, hash_content(content), content))
        return found

    def _new_state(self, step: BuildStep) -> NewState:
        mine = self.prepared[step.entity]
        if not mine:
            content = NOTHING
        elif self.stage.scatter:
            content = input_text([each.path for each in mine], [each.content for each in mine])
        else:
            content = mine[0].content
        size = sum(each.size for each in mine)
        return NewState(step.entity, content, step.inputs, size, step.version)

    async def _take_away(self, entity: str, before: str) -> list[str]:
        """Delete outputs that a state had `before` and no longer has; returns their paths."""
        stage, made = self.stage, {each.path for each in self.prepared[entity]}
        left = (input_pairs(before).keys() if stage.scatter else {stage.quick_path(entity)}) - made
        if not left:
            return []
        there = [path for path, signature in (await self.states.read_signatures(left)).items() if signature is not None]
        if there:
            archive = stage.options.on_orphan == "archive"
            await (self.states.archive(there) if archive else self.states.remove(there))
        return there

    def _learn(
        self,
        new: Mapping[str, NewState],
        versions: Mapping[str, int],
        signatures: Mapping[str, int],
        gone: Iterable[str],
    ) -> None:
        """Update the facts with what was published."""
        world, name, code = self.world, self.stage.name, self.stage.code.total
        for path in gone:
            world.see(path, None)
        for entity, state in new.items():
            if entity not in versions:
                self.committed.overtaken.append(entity)
                continue
            for each in self.prepared[entity]:
                world.see(each.path, signatures[each.path])
                fact = world.files[each.path]
                fact.known, fact.content, fact.size = fact.signature, each.content, each.size
            record = StateRecord(state.content, code, state.inputs, state.size, versions[entity])
            world.learn(name, entity, record)
            world.failures[name].pop(entity, None)
            self.committed.done.append(entity)

    async def _fail(self, bad: list[Build]) -> None:
        bad = await self._undisturbed(bad)
        if not bad:
            return
        stage = self.stage
        failures = [
            NewFailure(
                step.entity, stage.code.total, input_key(step.inputs), (result.error or "")[:2000],
                result.log[:20_000], result.took, str(step.reason), step.version,
            )
            for step, result in bad
        ]  # fmt: skip
        rows = await fail_states(
            self.database, self.pipeline, stage.name, failures, builder=self.builder, waits=stage.options.backoff
        )
        counted = {row["entity"]: row for row in rows}
        for step, _ in bad:
            record = self.world.records[stage.name].get(step.entity)
            if step.entity not in counted or (record is not None and record.version > step.version):
                self.committed.overtaken.append(step.entity)
                continue
            values = dict(counted[step.entity])
            self.world.failures[stage.name][values.pop("entity")] = msgspec.convert(values, BuildFailure)
            self.committed.failed.append(step.entity)


async def finish_intents(
    database: Database,
    states: States,
    steps: Sequence[BuildStep],
    intents: Mapping[str, tuple[str, str, str, int]],
    world: PipelineFacts,
    *,
    pipeline: str,
    by: str,
    holder: LeaseHolder,
) -> list[str]:
    """Finish builds whose builder died after it had published its result; returns their entities.

    `intents` are what it was about to publish, by entity: (content, code, inputs, size).
    """
    ready: dict[str, tuple[BuildStep, dict[str, str]]] = {}
    for step in steps:
        stage, (content, code, inputs, _) = step.stage, intents.get(step.entity, ("", "", "", 0))
        if content in ("", NOTHING) or isinstance(step.reason, Invalidated):
            continue
        if (code, inputs) == (stage.code.total, step.inputs):
            paths = input_pairs(content) if stage.scatter else {stage.quick_path(step.entity): content}
            ready[step.entity] = (step, paths)
    if not ready:
        return []
    seen = await states.contents([path for _, paths in ready.values() for path in paths])
    found = {path: one for path, one in seen.items() if isinstance(one, SeenFile)}
    done = {
        entity: (step, paths)
        for entity, (step, paths) in ready.items()
        if all(path in found and found[path].content == content for path, content in paths.items())
    }
    if not done:
        return []
    stage = steps[0].stage
    rows = [
        (entity, *intents[entity], 0 if stage.scatter else found[next(iter(paths))].signature, step.version)
        for entity, (step, paths) in done.items()
    ]
    versions = await adopt_states(database, pipeline, stage.name, rows, by=by, holder=holder, outcome="finished")
    for entity, (_, paths) in done.items():
        if entity not in versions:
            continue
        content, code, inputs, size = intents[entity]
        world.learn(stage.name, entity, StateRecord(content, code, inputs, size, versions[entity]))
        for path in paths:
            world.see(path, found[path].signature)
            fact = world.files[path]
            fact.known, fact.content, fact.size = fact.signature, found[path].content, found[path].size
    return list(versions)


def _outcome(mine: Sequence[Prepared]) -> str:
    if not mine:
        return "skipped"
    return "same" if all(each.held is None for each in mine) else "built"


def _unchanged(world: PipelineFacts, path: str, content: object) -> tuple[str, int] | None:
    """The hash and size of content that is already in place and need not be written again."""
    if not isinstance(content, bytes):
        return None
    fact = world.files.get(path)
    if fact is None or fact.known != fact.signature or fact.size != len(content):
        return None
    return (fact.content, fact.size) if hash_content(content) == fact.content else None
