"""The facts of one moment: existing files, builds, failures, and which inputs belong to which entity.

Plain data, updated in place by scans and builds; the decisions in `plan` only read it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from tidemill.pipelines.definition.pattern import Pattern, PatternError, derive, entity_id
from tidemill.pipelines.definition.pipeline import Input, Stage
from tidemill.pipelines.reducer.staleness import BuildFailure, StateRecord

Paths = tuple[tuple[str, ...], ...]  # of each input of a stage


class FileFact(msgspec.Struct, gc=False):
    """A file. Its content is known while its signature is still `known`, the one that it was read under."""

    signature: int
    known: int = 0
    content: str = ""
    size: int = 0


class Signatures:
    """The signatures of files."""

    def __init__(self, files: Mapping[str, FileFact]) -> None:
        self._files = files

    def get(self, path: str) -> int | None:
        fact = self._files.get(path)
        return None if fact is None else fact.signature


class PipelineControl(msgspec.Struct, frozen=True):
    """Operators' settings of a stage."""

    paused_by: str | None = None
    approved_code: str | None = None
    """The code for which approval was asked or, with a time in `approved_until`, given."""
    approved_until: float = 0.0


class PipelineFacts:
    """Everything that is known about one pipeline's states and their files."""

    def __init__(self) -> None:
        self.files: dict[str, FileFact] = {}
        self.matched: dict[Pattern, dict[str, None]] = {}
        self.records: dict[str, dict[str, StateRecord]] = defaultdict(dict)
        self.failures: dict[str, dict[str, BuildFailure]] = defaultdict(dict)
        self.controls: dict[str, PipelineControl] = {}
        self.codes: dict[tuple[str, str], dict[str, str]] = {}
        self.seen_lately: set[str] | None = None  # during a full scan: paths that have changed since it began

    def see(self, path: str, signature: int | None) -> bool:
        """Record a file's signature, None if it does not exist; returns whether it changed."""
        fact = self.files.get(path)
        if self.seen_lately is not None:
            self.seen_lately.add(path)
        if signature is None:
            for paths in self.matched.values():
                paths.pop(path, None)
            return self.files.pop(path, None) is not None and fact is not None
        if fact is None:
            self.files[path] = FileFact(signature)
        elif fact.signature == signature:
            return False
        else:
            fact.signature = signature
        for pattern, paths in self.matched.items():
            if path not in paths and pattern.values(path) is not None:
                paths[path] = None
        return True

    def learn(self, stage: str, entity: str, record: StateRecord) -> None:
        """Take over a state that was written here, unless a newer version was read meanwhile."""
        known = self.records[stage].get(entity)
        if known is None or known.version <= record.version:
            self.records[stage][entity] = record

    def content(self, path: str) -> str | None:
        """The content hash of an existing file."""
        fact = self.files.get(path)
        return None if fact is None or fact.known != fact.signature else fact.content


def take_records(
    now: dict[str, StateRecord], before: Mapping[str, StateRecord], found: Mapping[str, StateRecord]
) -> None:
    """Replace the states that were known before a reading by those that it found, but not by older versions."""
    for entity, record in before.items():
        if entity not in found and now.get(entity) is record:
            del now[entity]
    for entity, record in found.items():
        known = now.get(entity)
        if known is None or known is before.get(entity) or known.version <= record.version:
            now[entity] = record


def entities_of(stage: Stage, paths: Mapping[Pattern, Iterable[str]]) -> Iterator[tuple[str, Paths]]:
    """The entities that a stage's inputs form, each with the paths of its inputs. `paths` are the matching ones."""
    if len(stage.inputs) == 1:
        one = stage.inputs[0]
        if not one.is_many:
            for path in paths[one.pattern]:
                values = one.pattern.values(path)
                if values is not None:
                    yield entity_id(values) if stage.variables else "", ((path,),)
            return
        for key, found in _gather(stage, one, paths[one.pattern]).items():
            yield entity_id(key) if stage.variables else "", (tuple(sorted(found)),)
        return
    yield from _joined(stage, [_gather(stage, each, paths[each.pattern]) for each in stage.inputs])


def _gather(stage: Stage, one: Input, paths: Iterable[str]) -> dict[tuple[str, ...], list[str]]:
    """The paths of an input by the values of its key."""
    found: dict[tuple[str, ...], list[str]] = {}
    pattern, output = one.pattern, stage.output if one.pattern.has_glob else None
    plain = one.key == pattern.variables
    for path in paths:
        values = pattern.values(path)
        if values is None or (output is not None and output.values(path) is not None):
            continue  # a * never matches the outputs of its own stage
        if not plain:
            variables = dict(zip(pattern.variables, values, strict=True))
            values = tuple(derive(name, variables) or "" for name in one.key)
        found.setdefault(values, []).append(path)
    return found


def _joined(stage: Stage, gathered: Sequence[Mapping[tuple[str, ...], list[str]]]) -> Iterator[tuple[str, Paths]]:
    """All combinations of inputs that agree on the variables that they share."""
    order = sorted(range(len(stage.inputs)), key=lambda at: -len(stage.inputs[at].key))
    first, names = order[0], list(stage.inputs[order[0]].key)
    rows: list[tuple[tuple[str, ...], dict[int, list[str]]]] = [
        (key, {first: found}) for key, found in gathered[first].items()
    ]
    todo = order[1:]
    while todo:
        at = next(each for each in todo if set(stage.inputs[each].key) & set(names) or not stage.inputs[each].key)
        todo.remove(at)
        key = stage.inputs[at].key
        shared = [name for name in key if name in names]
        fresh = [name for name in key if name not in names]
        index: dict[tuple[str, ...], list[tuple[tuple[str, ...], list[str]]]] = {}
        for values, found in gathered[at].items():
            known = dict(zip(key, values, strict=True))
            by = tuple(known[name] for name in shared)
            index.setdefault(by, []).append((tuple(known[name] for name in fresh), found))
        places = [names.index(name) for name in shared]
        rows = [
            ((*values, *more), {**taken, at: found})
            for values, taken in rows
            for more, found in index.get(tuple(values[place] for place in places), ())
        ]
        names += fresh
    places = [names.index(name) for name in stage.variables]
    for values, taken in rows:
        id = entity_id([values[place] for place in places]) if places else ""
        yield id, tuple(tuple(sorted(taken[at])) for at in range(len(stage.inputs)))


def incomplete_entities(
    stage: Stage, paths: Mapping[Pattern, Iterable[str]]
) -> Iterator[tuple[str, Paths, tuple[str, ...]]]:
    """The entities of which some inputs exist and others do not: their paths, and the paths of what is missing."""
    gathered = [_gather(stage, each, paths[each.pattern]) for each in stage.inputs]
    yielded: set[str] = set()
    for one, found in zip(stage.inputs, gathered, strict=True):
        if set(one.key) != set(stage.variables):
            continue  # The entity is not known from this input alone.
        for values in found:
            variables = dict(zip(one.key, values, strict=True))
            id = entity_id([variables[name] for name in stage.variables]) if stage.variables else ""
            keys = [tuple(variables[name] for name in each.key) for each in stage.inputs]
            missing = tuple(
                expected_path(each.pattern, variables)
                for each, key, there in zip(stage.inputs, keys, gathered, strict=True)
                if key not in there
            )
            if missing and id not in yielded:
                yielded.add(id)
                known = tuple(tuple(sorted(there.get(key, ()))) for key, there in zip(keys, gathered, strict=True))
                yield id, known, missing


def expected_path(pattern: Pattern, variables: Mapping[str, str]) -> str:
    """The path that a pattern would have for these variables, with * for what they do not say."""
    values = {name: derive(name, variables) for name in pattern.variables}
    return re.sub(
        r"\{([^{}:]+)(?::[^{}]*)?\}(/?)",
        lambda hole: "*" + hole[2] if (value := values.get(hole[1])) is None else value + (hole[2] if value else ""),
        pattern.text,
    )


#: Values that differ, for each kind of variable.
_SAMPLES = (("1", "2"), ("2000-01-01", "2001-01-01"), ("2000-01", "2001-01"), ("2000", "2001"))


def awaiting_entities(stage: Stage, maker: Stage, entities: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The entities that would take any output of these states, of which it is not known how many they will have.

    Each comes with the path that it waits for, with * for what is not known.
    """
    for one in stage.inputs:
        if set(one.key) != set(stage.variables) or not one.pattern.overlaps(maker.output):
            continue
        for entity in entities:
            known = maker.variables_of(entity)
            for samples in _SAMPLES:
                found = {_taker(stage, one, maker, known, sample) for sample in samples}
                if len(found) == 1 and (id := found.pop()) is not None:
                    yield id, expected_path(maker.output, known)
                    break


def _taker(stage: Stage, one: Input, maker: Stage, known: Mapping[str, str], sample: str) -> str | None:
    """The entity that takes the output with this value of what the maker's function chooses."""
    try:
        path = maker.output.format({**dict.fromkeys(maker.output.variables, sample), **known})
    except PatternError:
        return None
    values = one.pattern.match(path)
    if values is None:
        return None
    return entity_id([derive(name, values) or "" for name in stage.variables]) if stage.variables else ""


def touched_entities(stage: Stage, changed: Iterable[str]) -> set[str] | None:
    """The entities that a change of these paths may affect; None for all."""
    found: set[str] = set()
    known = [(one.pattern, set(one.key) == set(stage.variables)) for one in stage.inputs]
    known.append((stage.output, not stage.scatter and set(stage.variables) <= set(stage.output.variables)))
    for path in changed:
        for pattern, names_entity in known:
            values = pattern.values(path)
            if values is None:
                continue
            if not names_entity:
                return None
            if pattern.variables != stage.variables:
                variables = dict(zip(pattern.variables, values, strict=True))
                values = tuple(derive(name, variables) or "" for name in stage.variables)
            found.add(entity_id(values) if values else "")
    return found
