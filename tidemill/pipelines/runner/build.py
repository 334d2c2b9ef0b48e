"""Calls a stage's function: its arguments, and what its result becomes.

The function gets the entity, then its inputs: a string for an input of one file, a list of `File` for one of many. An
annotation changes that: `bytes`, `Path`, `File`, or a list of one of those. It returns text, bytes, a `Path` whose file
is used, an iterable of bytes, a JSON value, or `SKIP` if there is nothing to build.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from tidemill.core.codec import encode
from tidemill.core.errors import ConfigError, TidemillError, words_of
from tidemill.core.jobs.injected import is_injected
from tidemill.core.limits.size_limits import check_output
from tidemill.core.user_traceback import user_traceback
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.application.middleware import surrounded
from tidemill.engine.containment.blocked_time import TimeLimit
from tidemill.engine.jobs.origin import building
from tidemill.engine.telemetry.tracing import build_span
from tidemill.engine.worker.threads import WorkThreads
from tidemill.pipelines.definition.entity import Entity
from tidemill.pipelines.definition.pattern import PatternError
from tidemill.pipelines.definition.pipeline import Stage
from tidemill.pipelines.reducer.facts import Paths
from tidemill.pipelines.stores.base import Readable, States
from tidemill.pipelines.stores.files import FileStates

_MANY = (list, Sequence, Iterable, tuple)
_PIECE = 1 << 20
_IN_MEMORY = 8 << 20  # bytes of a stream kept in memory before it goes to a temporary file


class Skip:
    """Returned by a stage's function if there is nothing to build."""

    def __repr__(self) -> str:
        return "SKIP"


SKIP = Skip()


BUILD_THREADS = 32
"""How many plain functions of stages run at once in a process."""


@cache
def build_threads() -> WorkThreads:
    """The threads for plain functions of stages in this process."""
    return WorkThreads(BUILD_THREADS, "tidemill-builds")


class BuildError(TidemillError):
    """A stage's function returned something that cannot be a state."""


class HeldOutput:
    """Contents that were read beforehand; others are read from their store, if it supports that."""

    def __init__(self, contents: Mapping[str, bytes], beyond: Readable | None = None) -> None:
        self._contents = contents
        self._beyond = beyond

    def read_now(self, path: str) -> bytes:
        if path in self._contents:
            return self._contents[path]
        if self._beyond is None:
            raise ConfigError(f"{path} was not read")
        return self._beyond.read_now(path)

    def pieces_now(self, path: str) -> Iterator[bytes]:
        if path not in self._contents and self._beyond is not None:
            yield from self._beyond.pieces_now(path)
        else:
            yield self.read_now(path)

    def place(self, path: str) -> Path | None:
        return None


class File:
    """An input file of a stage's function. Read large ones in chunks."""

    def __init__(self, path: str, source: Readable) -> None:
        self.path = path
        self.name = path.rpartition("/")[2]
        self._source = source

    def read(self) -> bytes:
        """Its content."""
        return self._source.read_now(self.path)

    def text(self) -> str:
        """Its content as text."""
        return self.read().decode()

    def pieces(self) -> Iterator[bytes]:
        """Its content in chunks."""
        return self._source.pieces_now(self.path)

    async def stream(self) -> AsyncIterator[bytes]:
        """The same for async functions."""
        pieces = self.pieces()
        while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
            yield piece

    def place(self) -> Path:
        """Its path on this machine, if its states are files."""
        found = self._source.place(self.path)
        if found is None:
            raise ConfigError(f"{self.path} is not a file on this machine: its states are not stored in files")
        return found

    def __repr__(self) -> str:
        return f"<File {self.path}>"


class Result(msgspec.Struct):
    """The result of a build: contents by path (none if it was skipped), or its error.

    `needs` are the signatures of its inputs at its start: it is discarded if they have changed.
    """

    outputs: dict[str, Any]
    took: float
    log: str = ""
    error: str | None = None
    needs: dict[str, int] = {}
    trace: str | None = None
    """The trace that builds from its outputs continue."""


class StageCaller:
    """A stage's function, inspected once and called often."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._forms: list[tuple[str | None, str, bool]] = []  # of each input: its name, its type, whether a list
        try:
            parameters = list(inspect.signature(stage.function).parameters.values())
            hints = get_type_hints(stage.function)
        except (NameError, TypeError, ValueError):
            parameters, hints = [], {}
        names = [each.name for each in parameters]
        room = [each for each in parameters[1:] if each.name not in stage.options.params and not is_injected(each)]
        for at, one in enumerate(stage.inputs):
            if one.name and not one.name.isdigit():
                if one.name not in names and not any(each.kind is each.VAR_KEYWORD for each in parameters):
                    raise ConfigError(f"stage {stage.name}: its function has no parameter {one.name!r} for its input")
                name, hint = one.name, hints.get(one.name)
            else:
                name, hint = None, hints.get(room[at].name) if at < len(room) else None
            self._forms.append((name, *_form(hint, one.is_many, f"stage {stage.name}")))
        several = any(each.kind is each.VAR_POSITIONAL for each in parameters)
        self._room = len(stage.inputs) if several or not parameters else max(0, len(room))
        self._validator = _validator(stage)
        self._params = {name: value for name, value in stage.options.params.items() if name in names}
        lifespan = stage.pipeline.lifespan or Lifespan()
        self._function = surrounded(lifespan, "stage", stage.full_name, stage.function, _entity_path)

    def arguments(self, entity: Entity, groups: Sequence[Sequence[File]]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the function."""
        positional: list[Any] = [entity]
        named = dict(self._params)
        for (name, form, many), files in zip(self._forms, groups, strict=True):
            given = [_given(file, form) for file in files]
            value = given if many else given[0]
            if name is not None:
                named[name] = value
            elif len(positional) <= self._room:
                positional.append(value)
        return positional, named

    def wanted_whole(self, paths: Paths) -> list[str]:
        """The inputs that the function gets as text or bytes: they must be read before the call."""
        forms = zip(self._forms, paths, strict=True)
        return [path for (_, form, _), group in forms if form in ("text", "bytes") for path in group]

    def call(self, entity: Entity, groups: Sequence[Sequence[File]]) -> Any:
        """Call the function; an async one returns a coroutine."""
        positional, named = self.arguments(entity, groups)
        return self._function(*positional, **named)

    def run(self, entity: Entity, groups: Sequence[Sequence[File]], traces: Sequence[str] = ()) -> Result:
        """A complete build by a plain function; `traces` are those that its inputs were written in."""
        names = self.stage.pipeline.name, self.stage.name, entity.full_id
        with building(*names), build_span(*names, traces) as trace:
            result = self._run(entity, groups)
        result.trace = trace
        return result

    async def run_async(self, entity: Entity, groups: Sequence[Sequence[File]], traces: Sequence[str] = ()) -> Result:
        """A complete build by any function; a plain one runs in a thread."""
        names = self.stage.pipeline.name, self.stage.name, entity.full_id
        with building(*names), build_span(*names, traces) as trace:
            result = await self._run_async(entity, groups)
        result.trace = trace
        return result

    def _run(self, entity: Entity, groups: Sequence[Sequence[File]]) -> Result:
        began = time.perf_counter()
        try:
            outputs = self._outputs(entity, self.call(entity, groups))
        except BaseException as error:  # noqa: BLE001 - every exception of the user's code is its failure
            return self._failed(entity, error, began)
        return Result(outputs, time.perf_counter() - began, "\n".join(entity.notes))

    async def _run_async(self, entity: Entity, groups: Sequence[Sequence[File]]) -> Result:
        began, budget = time.perf_counter(), self.stage.options.budget
        if not self.stage.is_async:
            name = f"stage {self.stage.name} of pipeline {self.stage.pipeline.name}"
            try:
                return await build_threads().run(partial(self._run, entity, groups), name, budget)
            except TimeoutError:
                return self._failed(entity, BuildError(f"it took longer than its budget of {budget:g} s"), began)
        try:
            async with TimeLimit(budget) as limit:
                made = self.call(entity, groups)
                value = await _spooled(made) if inspect.isasyncgen(made) else await made
            outputs = self._outputs(entity, value)
        except TimeoutError as error:
            known = BuildError(f"it took longer than its budget of {budget:g} s") if limit.expired() else error
            return self._failed(entity, known, began)
        except BaseException as error:
            task = asyncio.current_task()
            if not isinstance(error, Exception) and task is not None and task.cancelling():
                raise asyncio.CancelledError from error  # Also the SystemExit of a task that ends the process.
            return self._failed(entity, error, began)
        return Result(outputs, time.perf_counter() - began, "\n".join(entity.notes))

    def _failed(self, entity: Entity, error: BaseException, began: float) -> Result:
        message = words_of(error) if isinstance(error, BuildError) else f"{type(error).__name__}: {words_of(error)}"
        trace = user_traceback(error, limit=-8)
        return Result({}, time.perf_counter() - began, "\n".join([*entity.notes, trace]), message)

    def _check(self, value: Any) -> None:
        """Raise unless a result fits the stage's schema and passes its check."""
        check = self.stage.options.check
        if self._validator is None and check is None:
            return
        if isinstance(value, Iterator | Path):
            raise BuildError("check= and schema= need a result as a whole: return text, bytes or a value, not pieces")
        if self._validator is not None:
            try:
                data = msgspec.json.decode(value) if isinstance(value, str | bytes) else json.loads(encode(value))
            except msgspec.DecodeError as error:
                raise BuildError(f"the result is not JSON: {error}") from error
            for error in self._validator.iter_errors(data):
                place = "".join(f"[{each!r}]" for each in error.instance_path)
                raise BuildError(f"the result does not fit its schema: {f'{place}: ' if place else ''}{error.message}")
        verdict = None if check is None else check(value)
        if verdict is False or isinstance(verdict, str):
            name = getattr(check, "__name__", "its check")
            raise BuildError(f"the result fails {name}{f': {verdict}' if verdict else ''}")

    def _outputs(self, entity: Entity, value: Any) -> dict[str, Any]:
        """The function's result as contents by path."""
        stage = self.stage
        if value is SKIP:
            return {}
        if not stage.scatter:
            self._check(value)
            content = to_content(value, stage.name)
            if isinstance(content, bytes) and len(content) < stage.options.min_size:
                raise BuildError(too_small(len(content), stage.options.min_size))
            return {entity.output_path: content}
        if not isinstance(value, Mapping):
            raise BuildError(f"stage {stage.name} scatters: it must return a dict of its outputs, not a {_kind(value)}")
        outputs: dict[str, Any] = {}
        for key, content in value.items():
            chosen = key if isinstance(key, tuple) else (key,)
            if len(chosen) != len(stage.scatter):
                raise BuildError(f"{key!r} does not name {', '.join(stage.scatter)}")
            values = {**entity.variables, **dict(zip(stage.scatter, map(str, chosen), strict=True))}
            self._check(content)
            try:
                outputs[stage.output_path(values)] = to_content(content, stage.name)
            except PatternError as error:
                raise BuildError(str(error)) from error
        if not outputs:
            raise BuildError(f"stage {stage.name} returned no output at all")
        return outputs


def _entity_path(arguments: Mapping[str, Any]) -> str:
    return next((each.output_path for each in arguments.values() if isinstance(each, Entity)), "")


def too_small(size: int, least: int) -> str:
    """What is wrong with a result that is too small."""
    if not size:
        return f"the result is empty, and must have at least {least} bytes (min_size=0 allows empty ones)"
    return f"the result has {size} bytes, and must have at least {least}"


def to_content(value: Any, stage: str) -> Any:
    """The content to write: bytes, or an iterable of them."""
    what = f"the output of stage {stage}"
    if isinstance(value, str):
        return check_output(value.encode(), what)
    if isinstance(value, bytes | bytearray | memoryview):
        return check_output(bytes(value), what)
    if value is None or value is SKIP:
        raise BuildError(f"stage {stage} returned nothing; return its output as text or bytes, or SKIP for the whole")
    if isinstance(value, Path):
        return _pieces_of_file(value)
    if isinstance(value, Iterator):
        return (_bytes(piece) for piece in value)
    return check_output(encode(value) + b"\n", what)


def _bytes(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece


def _pieces_of_file(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as opened:
        while piece := opened.read(_PIECE):
            yield piece


async def _spooled(pieces: AsyncIterator[Any]) -> Iterator[bytes]:
    """The output of an async generator, spooled to a temporary file if it is large: it is written later."""
    held = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - closed by its reader
    try:
        async for piece in pieces:
            held.write(_bytes(piece))
    except BaseException:
        held.close()
        raise

    def read() -> Iterator[bytes]:
        with held:
            held.seek(0)
            while piece := held.read(_PIECE):
                yield piece

    return read()


async def open_inputs(states: States, caller: StageCaller, paths: Paths) -> Readable:
    """The source of a build's inputs: those that can only be read asynchronously are read now."""
    if isinstance(states, FileStates):
        return states
    beyond: Any = states if hasattr(states, "pieces_now") else None
    wanted = caller.wanted_whole(paths) if beyond is not None else [path for group in paths for path in group]
    return HeldOutput({path: await states.read(path) for path in wanted}, beyond)


def _refuse(address: str) -> Any:
    raise ValueError(f"a schema must not refer to {address}: write the definition into it")


def _validator(stage: Stage) -> Any:
    """The validator of a stage's results, if it has a schema."""
    if stage.options.schema is None:
        return None
    import jsonschema_rs  # slow to load, and rarely needed

    try:
        return jsonschema_rs.validator_for(dict(stage.options.schema), retriever=_refuse)
    except ValueError as error:
        raise ConfigError(f"stage {stage.name}: schema= is not a JSON Schema: {error}") from error


def files_of(paths: Paths, source: Readable) -> list[list[File]]:
    """The input files of an entity."""
    return [[File(path, source) for path in group] for group in paths]


def _form(hint: Any, many: bool, where: str) -> tuple[str, bool]:
    """The type in which a file is passed, and whether in a list."""
    origin = get_origin(hint)
    if origin in _MANY or hint in _MANY:
        inner = (get_args(hint) or (File,))[0]
        return _form(inner, False, where)[0] if inner is not Any else "file", True
    if hint is None or hint is Any or hint is inspect.Parameter.empty:
        return ("file", True) if many else ("text", False)
    form = {str: "text", bytes: "bytes", Path: "path", File: "file"}.get(hint)
    if form is None:
        raise ConfigError(f"{where}: an input cannot be given as {hint}; use str, bytes, Path, File or a list of those")
    if many:
        return form, True
    return form, False


def _given(file: File, form: str) -> Any:
    if form == "text":
        return file.text()
    if form == "bytes":
        return file.read()
    return file.place() if form == "path" else file


def _kind(value: Any) -> str:
    return type(value).__name__
