"""The plan: whether each state must be built and why, or why it must wait. A pure function of the facts.

Stages are planned in topological order. A state that is about to be built counts as missing: its consumers wait for
it, because an identical result would leave them fresh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from functools import cached_property
from operator import itemgetter

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.expressions.paths import RefError
from tidemill.pipelines.definition.code_hash import changed_parts
from tidemill.pipelines.definition.pattern import Pattern, PatternError, entity_id
from tidemill.pipelines.definition.pipeline import Plain, Stage
from tidemill.pipelines.reducer import reasons
from tidemill.pipelines.reducer.facts import (
    Paths,
    PipelineControl,
    PipelineFacts,
    awaiting_entities,
    entities_of,
    incomplete_entities,
)
from tidemill.pipelines.reducer.staleness import StateRecord, input_pairs, input_text, staleness

_HOLDS = (
    reasons.Blocked,
    reasons.NoPartner,
    reasons.BackingOff,
    reasons.NeedsAttention,
    reasons.Paused,
    reasons.NeedsApproval,
)
LONGEST = 2000  # bytes of an entity's name: more do not fit into an index
_FIRST_TIME = (reasons.Missing, reasons.Deleted, reasons.RetryDue, reasons.TooSmall, reasons.Edited)


class BuildStep(msgspec.Struct, gc=False):
    """A state that must be built or must wait."""

    stage: Stage
    entity: str
    reason: reasons.Reason
    paths: Paths
    inputs: str
    version: int = 0
    traces: tuple[str, ...] = ()
    """The traces that its inputs were written in."""

    @property
    def is_build(self) -> bool:
        return not isinstance(self.reason, _HOLDS)


class Adoption(msgspec.Struct, gc=False):
    """An output found in place that is recorded as built."""

    stage: Stage
    entity: str
    inputs: str
    paths: Paths
    content: str
    size: int
    signature: int
    version: int = 0


class BuildPlan(msgspec.Struct):
    """The plan of a pipeline, or of a part of it."""

    builds: list[BuildStep]
    holds: list[BuildStep]
    adoptions: list[Adoption]
    orphans: list[tuple[Stage, str]]
    fresh: dict[str, int]
    problems: list[str]
    past_failures: list[tuple[Stage, str]] = []
    """Failures of states that no longer exist because their inputs were removed."""
    waiting: list[BuildStep] = []
    """States of which only some of the inputs that are joined exist."""

    @property
    def steps(self) -> list[BuildStep]:
        return [*self.builds, *self.holds]


def make_plan(
    stages: Iterable[Stage],
    world: PipelineFacts,
    now: float,
    *,
    only: Mapping[str, set[str] | None] | None,
    busy: Mapping[str, str] | None = None,
) -> BuildPlan:
    """The plan for stages in topological order.

    only   per stage, the entities to plan (None: all); stages that are not named are skipped
    busy   outputs that are being built now, and by which stage: nothing is planned for them
    """
    plan = BuildPlan([], [], [], [], {}, [])
    pending: dict[str, str] = {}
    order, scattering = list(stages), dict[str, tuple[Stage, list[str]]]()
    for stage in order:
        if stage.scatter:
            mark = f"{stage.name}:"
            scattering[stage.name] = stage, [key.removeprefix(mark) for key in busy or () if key.startswith(mark)]
    for stage in order:
        if only is not None and stage.name not in only:
            continue
        planner = _StagePlanner(stage, world, now, plan, pending, busy or {}, scattering)
        planner.over(None if only is None else only[stage.name])
    return plan


class _StagePlanner:
    """The planning of one stage."""

    def __init__(
        self,
        stage: Stage,
        world: PipelineFacts,
        now: float,
        plan: BuildPlan,
        pending: dict[str, str],
        busy: Mapping[str, str],
        scattering: Mapping[str, tuple[Stage, list[str]]],
    ) -> None:
        """`scattering` are the entities of stages with many outputs that are about to be built."""
        self.stage = stage
        self.world = world
        self.now = now
        self.plan = plan
        self.pending = pending
        self.busy = busy
        self.scattering = scattering
        self.rules = stage.rules
        self.records = world.records[stage.name]
        self.failures = world.failures[stage.name]
        control = world.controls.get("", PipelineControl()), world.controls.get(stage.name, PipelineControl())
        self.paused_by = control[0].paused_by or control[1].paused_by
        self.asked = control[1].approved_code == self.rules.code and not control[1].approved_until
        self.approved = control[1].approved_code == self.rules.code and control[1].approved_until > now
        self.again: dict[bool, list[BuildStep]] = {False: [], True: []}  # rebuilds, by whether an input changed

    def over(self, only: set[str] | None) -> None:
        """Plan these entities, or all."""
        paths = self._paths() if only is None or self._needs_all else self._there()
        seen: set[str] = set()
        fresh = 0
        left: Iterable[tuple[str, Paths]] | None = None
        if only is None and self.stage.plain is not None and self.stage.filter is None:
            fresh, left = self._at_a_count_if_fresh(paths[self.stage.inputs[0].pattern], seen)
        if left is None:
            left = entities_of(self.stage, paths) if only is None else self._some(only, paths)
        for entity, inputs in sorted(left, key=itemgetter(0)):  # independent of the order on disk
            seen.add(entity)
            fresh += self._check_state(entity, inputs)
        above = self.stage.options.approve_above
        for again in self.again.values():  # New inputs do not wait for the approval of new code.
            for step in again:
                # Code that has asked for approval goes on asking when new inputs have left fewer states to it.
                is_asking = self.asked and isinstance(step.reason, reasons.CodeChanged)
                if above is not None and not self.approved and (len(again) > above or is_asking):
                    self._hold(step, reasons.NeedsApproval(len(again), above, step.reason))  # pyright: ignore[reportArgumentType]
                else:
                    self.plan.builds.append(step)
        self.plan.fresh[self.stage.name] = fresh
        if only is None and len(self.stage.inputs) > 1:
            for entity, found, missing in incomplete_entities(self.stage, paths):
                if entity not in seen and self._wanted(entity, found):
                    self.plan.waiting.append(BuildStep(self.stage, entity, reasons.NoPartner(missing), found, ""))
        gone = _gone(self.records.keys(), seen, only)
        self.plan.orphans += [(self.stage, each) for each in gone if _has_output(self.records[each])]
        self.plan.past_failures += [(self.stage, each) for each in _gone(self.failures.keys(), seen, only)]

    @property
    def _needs_all(self) -> bool:
        """Whether an entity's inputs are only known from all files."""
        return self.stage.named or set(self.stage.inputs[0].key) != set(self.stage.variables)

    def _there(self) -> dict[Pattern, Mapping[str, None]]:
        return {one.pattern: self.world.matched.get(one.pattern, {}) for one in self.stage.inputs}

    def _paths(self) -> dict[Pattern, Mapping[str, None]]:
        """Existing paths and future ones: outputs to be built count as inputs that will exist."""
        found: dict[Pattern, Mapping[str, None]] = {}
        for one in self.stage.inputs:
            there: Mapping[str, None] = self.world.matched.get(one.pattern, {})
            coming = [
                path
                for path in (*self.pending, *self.busy)
                if path not in there and one.pattern.values(path) is not None
            ]
            found[one.pattern] = {**there, **dict.fromkeys(coming)} if coming else there
        return found

    def _some(self, only: set[str], paths: Mapping[Pattern, Mapping[str, None]]) -> Iterable[tuple[str, Paths]]:
        if self._needs_all:
            return [(entity, found) for entity, found in entities_of(self.stage, paths) if entity in only]
        there, found = paths[self.stage.inputs[0].pattern], []
        for entity in sorted(only):
            try:
                path = self.stage.quick_input(entity)
            except (PatternError, ConfigError):
                continue
            if path in there or path in self.pending or path in self.busy:
                found.append((entity, ((path,),)))
        return found

    def _at_a_count_if_fresh(self, paths: Iterable[str], seen: set[str]) -> tuple[int, list[tuple[str, Paths]]]:
        """The number of states that are fresh by a fast check, and all others.

        The checks are those of `staleness`, in the order of how rarely they fail.
        """
        plain = self.stage.plain or Plain("", "", "", "")
        first, last = len(plain.input_before), -len(plain.input_after) or None
        before, after = plain.output_before, plain.output_after
        records, files, pending, busy = self.records, self.world.files, self.pending, self.busy
        code, least, fresh = self.rules.code, self.rules.min_size, 0
        left: list[tuple[str, Paths]] = []
        for path in paths:
            entity = path[first:last]
            record, there = records.get(entity), files.get(path)
            output = files.get(f"{before}{entity}{after}")
            if (
                record is not None
                and there is not None
                and output is not None
                and there.content == record.inputs
                and output.content == record.content
                and there.known == there.signature
                and output.known == output.signature
                and record.code == code
                and record.invalid_by is None
                and record.size >= least
                and path not in pending
                and path not in busy
            ):
                seen.add(entity)
                fresh += 1
            else:
                left.append((entity, ((path,),)))
        return fresh, left

    def _check_state(self, entity: str, paths: Paths) -> bool:
        """Whether a state is fresh; otherwise adds it to the plan."""
        stage, world = self.stage, self.world
        if stage.filter is not None and not self._wanted(entity, paths):
            return False
        record = self.records.get(entity)
        outputs = self._outputs(entity, record)
        if outputs is None:
            return False
        if (f"{stage.name}:{entity}" if stage.scatter else outputs[0]) in self.busy:
            return False
        every = [path for group in paths for path in group]
        waits = tuple(path for path in every if path in self.pending or path in self.busy)
        waits += tuple(path for path in self._coming.get(entity, ()) if path not in waits)
        contents = [world.content(path) for path in every]
        if waits or None in contents:
            missing = waits or tuple(path for path, content in zip(every, contents, strict=True) if content is None)
            step = BuildStep(stage, entity, reasons.Blocked(missing), paths, "")
            self._hold(step, step.reason)
            return False
        inputs = input_text(every, [content or "" for content in contents], named=stage.named)
        content, size = self._output_content(outputs, record)
        version = 0 if record is None else record.version
        reason = staleness(
            self.rules, record, self.failures.get(entity), content=content, size=size, inputs=inputs, now=self.now
        )
        if reason is None:
            if content is not None and (record is None or record.content != content):
                signature = world.files[outputs[0]].signature if len(outputs) == 1 else 0
                self.plan.adoptions.append(Adoption(stage, entity, inputs, paths, content, size, signature, version))
            return True
        step = BuildStep(stage, entity, self._with_details(reason, every), paths, inputs, version)
        self._expect(entity, outputs)
        if not step.is_build:
            self.plan.holds.append(step)
        elif self.paused_by is not None:
            self._hold(step, reasons.Paused(self.paused_by, str(step.reason)))
        elif isinstance(reason, _FIRST_TIME):
            self.plan.builds.append(step)
        else:
            self.again[isinstance(reason, reasons.InputChanged)].append(step)
        return False

    def _hold(self, step: BuildStep, reason: reasons.Reason) -> None:
        step.reason = reason
        self.plan.holds.append(step)
        self._expect(step.entity, self._outputs(step.entity, self.records.get(step.entity)) or ())

    def _expect(self, entity: str, outputs: Iterable[str]) -> None:
        """Let the consumers of a state wait for it."""
        # Another builder may have put some of its many outputs in place, or may have died meanwhile.
        for path in (*outputs, *self._found.get(entity, ())) if self.stage.scatter else outputs:
            self.pending[path] = self.stage.name
        if self.stage.scatter:
            self.scattering[self.stage.name][1].append(entity)

    @cached_property
    def _coming(self) -> dict[str, list[str]]:
        """What entities wait for that is made by stages with many outputs: its names are not known yet."""
        found: dict[str, list[str]] = {}
        for maker, entities in self.scattering.values() if self.stage.named else ():
            for entity, path in awaiting_entities(self.stage, maker, entities):
                found.setdefault(entity, []).append(path)
        return found

    @cached_property
    def _found(self) -> dict[str, list[str]]:
        """The existing outputs of a stage whose states have many, by entity."""
        found: dict[str, list[str]] = {}
        for path in self.world.matched.get(self.stage.output, ()):
            values = self.stage.output.match(path) or {}
            if all(name in values for name in self.stage.variables):
                id = entity_id([values[name] for name in self.stage.variables]) if self.stage.variables else ""
                found.setdefault(id, []).append(path)
        return found

    def _outputs(self, entity: str, record: StateRecord | None) -> list[str] | None:
        if len(entity) > LONGEST // 4 and len(entity.encode()) > LONGEST:
            self.plan.problems.append(f"{self.stage.name}: {entity[:60]}…: its name has more than {LONGEST:,} bytes")
            return None
        if self.stage.scatter:
            return list(input_pairs(record.content)) if record is not None else []
        try:
            return [self.stage.quick_path(entity)]
        except PatternError as error:
            self.plan.problems.append(f"{self.stage.name}: {error}")
            return None

    def _output_content(self, outputs: list[str], record: StateRecord | None) -> tuple[str | None, int]:
        files = self.world.files
        if self.stage.scatter:
            facts = [files.get(path) for path in outputs]
            if record is None or not _has_output(record) or None in facts:
                return None, 0
            return input_text(outputs, [fact.content for fact in facts if fact]), sum(f.size for f in facts if f)
        fact = files.get(outputs[0])
        if fact is None:
            return None, 0
        return fact.content, fact.size

    def _with_details(self, reason: reasons.Reason, paths: list[str]) -> reasons.Reason:
        """The reason with details from the facts: which code part, which input."""
        if isinstance(reason, reasons.CodeChanged):
            codes, name = self.world.codes, self.stage.name
            before = codes.get((name, reason.before))
            if before is not None:
                return msgspec.structs.replace(reason, parts=changed_parts(before, self.stage.code.parts))
        if isinstance(reason, reasons.InputChanged) and not (reason.changed or reason.added or reason.removed):
            return msgspec.structs.replace(reason, changed=tuple(paths))
        return reason

    def _wanted(self, entity: str, paths: Paths) -> bool:
        try:
            return self.stage.takes(entity, sum(map(len, paths)))
        except RefError as error:
            self.plan.problems.append(f"{self.stage.name}: {entity}: {error}")
            return False


def _gone(known: Set[str], seen: set[str], only: set[str] | None) -> list[str]:
    """Known entities that were not found although they were planned."""
    return sorted(known - seen if only is None else (only - seen) & known)


def _has_output(record: StateRecord) -> bool:
    """Whether the last build wrote an output."""
    return bool(record.content) and not record.is_nothing
