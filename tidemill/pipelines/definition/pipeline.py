"""What users declare: a pipeline, its stages, and the arguments of a stage's function.

blog = Pipeline("auto-blog", root="output/")

@blog.stage(input="daily/{date}/*.txt", output="summary/{date}.txt", min_size=500)
async def summary(entity, files): ...

@blog.stage(input="summary/{date}.txt", output="final/{date}-daily-digest.md", max_concurrency=8)
async def digest(entity, text): ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import msgspec

from tidemill.core.check_given import check_function
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import DEFAULT_PRIORITY, check_name
from tidemill.core.limits.resources import Needs, Resources, parse_resources
from tidemill.pipelines.definition.code_hash import CodeHash, hash_code, remember_sources
from tidemill.pipelines.definition.entity import Entity
from tidemill.pipelines.definition.pattern import Pattern, derive, entity_values
from tidemill.pipelines.reducer.staleness import BACKOFF, OnEdit, StalenessRules

if TYPE_CHECKING:  # slow to load: a check of everything must start fast
    from tidemill.core.expressions.conditions import Condition
    from tidemill.engine.application.lifespan import Lifespan

OnOrphan = Literal["keep", "archive", "delete"]

#: Rebuilding more states of a stage than this needs an approval.
APPROVE_ABOVE = 1000

Function = Callable[..., Any]


class Input(msgspec.Struct, frozen=True):
    """One input of a stage. `key` are the variables that assign it to an entity; all others are collected."""

    name: str
    pattern: Pattern
    key: tuple[str, ...]

    @property
    def is_many(self) -> bool:
        """Whether an entity may have several files of this input."""
        return self.pattern.has_glob or set(self.key) != set(self.pattern.variables)


class Plain(NamedTuple):
    """A stage that builds one file from one, with one variable in both paths: the text around it in each."""

    input_before: str
    input_after: str
    output_before: str
    output_after: str


class Stage:
    """A stage: its inputs, its output, and the function that builds it."""

    def __init__(
        self,
        pipeline: Pipeline,
        function: Function,
        name: str,
        inputs: Sequence[Input],
        output: Pattern,
        *,
        variables: tuple[str, ...],
        scatter: tuple[str, ...],
        options: StageOptions,
    ) -> None:
        self.pipeline = pipeline
        self.function = function
        self.name = check_name("stage", name)
        self.inputs = tuple(inputs)
        self.output = output
        self.variables = variables  # of the entity
        deep = next((one.pattern.deep for one in inputs if one.pattern.deep in variables), None)
        self._deep = None if deep is None else variables.index(deep)
        self.scatter = scatter  # output variables that the function chooses
        self.options = options
        self.is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
        self.filter = None if options.filter is None else _condition(options.filter, variables)
        self.named = len(self.inputs) != 1 or self.inputs[0].is_many
        self.code_of: Any = None
        self._code: CodeHash | None = None
        self._quick = _around(output) if variables == output.variables else None
        self.plain = self._find_plain()

    def __repr__(self) -> str:
        inputs = ", ".join(one.pattern.text for one in self.inputs)
        return f"<stage {self.full_name}: {inputs} -> {self.output.text}>"

    @property
    def full_name(self) -> str:
        """The name of the stage in its application, and of the task that builds its states."""
        return f"{self.pipeline.name}/{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def code(self) -> CodeHash:
        """The hash of its code, computed once: the running code does not change when its file does."""
        if self._code is None:
            options = self.options
            hashed = self.function if self.code_of is None else self.code_of
            params = dict(options.params)
            if options.check is not None:
                params["check"] = options.version or hash_code(options.check).total
            if options.schema is not None:
                params["schema"] = options.schema
            self._code = hash_code(hashed, params=params, version=options.version)
        return self._code

    @property
    def rules(self) -> StalenessRules:
        return StalenessRules(self.code.total, self.options.min_size, self.options.on_edit)

    def takes(self, entity: str, files: int) -> bool:
        """Whether the filter takes an entity that has so many input files; RefError where that cannot be evaluated."""
        return self.filter is None or self.filter.holds({**self.variables_of(entity), "id": entity, "files": files})

    def entity(self, id: str) -> Entity:
        """An entity of this stage by its id."""
        return Entity(id, self.variables_of(id), "" if self.scatter else self.quick_path(id))

    def variables_of(self, id: str) -> dict[str, str]:
        """The variables of an entity by its id."""
        values = entity_values(id, len(self.variables), self._deep)
        if values is None:
            raise ConfigError(f"{id!r} is not an entity of stage {self.name}: it needs {', '.join(self.variables)}")
        return dict(zip(self.variables, values, strict=True))

    def _find_plain(self) -> Plain | None:
        """The text around the entity, if both paths are text with one variable.

        Any value of one must be valid for the other.
        """
        taken = None if self.named or self._quick is None else _around(self.inputs[0].pattern)
        if taken is None or self._quick is None:
            return None
        hidden = self._quick[0] == "" or self._quick[0].endswith("/")
        if hidden and not (taken[0] == "" or taken[0].endswith("/")):
            return None  # A value could begin with a dot, which is only valid inside a name.
        return Plain(*taken, *self._quick)

    def quick_path(self, id: str) -> str:
        """The path of an entity's output, with a fast path for a single variable, which is not checked."""
        if self._quick is not None and not id.startswith(".") and "/" not in id:
            return f"{self._quick[0]}{id}{self._quick[1]}"
        return self.output_path(self.variables_of(id))

    def quick_input(self, id: str) -> str:
        """The path of an entity's only input, in the same way."""
        if self.plain is not None and not id.startswith(".") and "/" not in id:
            return f"{self.plain.input_before}{id}{self.plain.input_after}"
        return self.inputs[0].pattern.format(self.variables_of(id))

    def output_path(self, variables: Mapping[str, str]) -> str:
        """The path of the output for these variables."""
        return self.output.format({name: derive(name, variables) or "" for name in self.output.variables})


class StageOptions(msgspec.Struct, frozen=True):
    """How a stage's states are built and stored."""

    min_size: int = 1
    check: Callable[..., Any] | None = None
    schema: Mapping[str, Any] | None = None
    max_concurrency: int | None = None
    queue: str | None = None
    priority: int = DEFAULT_PRIORITY
    budget: float | None = None
    in_process: bool = False
    version: str | None = None
    params: Mapping[str, Any] = {}
    filter: str | None = None
    on_edit: OnEdit = "rebuild"
    on_orphan: OnOrphan = "keep"
    backoff: tuple[float, ...] = BACKOFF
    approve_above: int | None = APPROVE_ABOVE
    concurrency_key: str | None = None
    resources: Resources | None = None


class Pipeline:
    """A set of stages whose states must exist; builds those that are missing or out of date."""

    def __init__(
        self,
        name: str,
        root: str | Path = ".",
        *,
        store: Any = None,
        scan_interval: Duration = 60,
        full_scan: Duration = 3600,
        watch: bool = True,
        backoff: Iterable[Duration] = BACKOFF,
        approve_above: int | None = APPROVE_ABOVE,
        on_edit: OnEdit = "rebuild",
        on_orphan: OnOrphan = "keep",
        queue: str = "pipelines",
    ) -> None:
        """
        root           the folder of all patterns
        store          where states are stored, if not in files: `ObjectStates(...)` or `DatabaseStates()`
        scan_interval  how often to poll for changes without a notification
        full_scan      how often to poll every file while the system notifies of changes
        watch          whether to use the operating system's notifications of changes
        backoff        the delays after failures; afterwards a state needs attention
        approve_above  rebuilding more states of a stage than this needs an approval; None for never
        on_edit        what to do with outputs that were edited: "rebuild" or "adopt" them
        on_orphan      what `clean` does with outputs whose inputs were removed: "keep", "archive" or "delete"
        queue          the queue of builds, unless a stage names another
        """
        self.name = check_name("pipeline", name)
        if "/" in name:
            raise ConfigError(f"{name!r} is not a valid pipeline name: remove the slash")
        self.root, self.store = Path(root), store
        self.scan_interval = parse_duration(scan_interval, what="scan_interval")
        self.full_scan = parse_duration(full_scan, what="full_scan")
        self.watch, self.queue = watch, check_name("queue", queue)
        self.stages: dict[str, Stage] = {}
        self.lifespan: Lifespan | None = None  # that of the application that declares it
        self.defaults = StageOptions(
            backoff=_waits(backoff),
            approve_above=approve_above,
            on_edit=_one_of("on_edit", on_edit, ("rebuild", "adopt")),
            on_orphan=_one_of("on_orphan", on_orphan, ("keep", "archive", "delete")),
        )

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}: {' -> '.join(self.stages) or 'no stages'}>"

    def hash_stages(self) -> None:
        """Hash the code of all stages now: code that runs later may change module-level values that they read."""
        for stage in self.stages.values():
            _ = stage.code

    def stage(
        self,
        *,
        input: str | Sequence[str] | Mapping[str, str],
        output: str,
        name: str | None = None,
        collect: str | Iterable[str] = (),
        scatter: bool = False,
        min_size: int = 1,
        check: Callable[[Any], Any] | None = None,
        schema: Mapping[str, Any] | None = None,
        max_concurrency: int | None = None,
        concurrency_key: str | None = None,
        queue: str | None = None,
        priority: int = DEFAULT_PRIORITY,
        budget: Duration | None = None,
        in_process: bool = False,
        resources: Needs | None = None,
        version: str | None = None,
        params: Mapping[str, Any] | None = None,
        filter: str | None = None,
        on_edit: OnEdit | None = None,
        on_orphan: OnOrphan | None = None,
        backoff: Iterable[Duration] | None = None,
        approve_above: int | Literal["as the pipeline"] | None = "as the pipeline",
        code_of: Any = None,
    ) -> Callable[[Function], Stage]:
        """Declare a stage.

        input            a pattern, several, or several by the names of the function's parameters; several are joined on
                         the variables that they share
        output           the pattern of the output
        collect          variables of the input that the output does not have: one build gets all of them
        scatter          the output has variables that the input does not have: the function returns a dict of outputs
        min_size         a smaller output is a failure, and so is an empty one unless this is 0
        check            is called with each result, as the function returned it: if it raises, or returns a text or
                         False, the build fails for that reason
        schema           the JSON Schema that each result must fit: a value, or JSON in text or bytes
        max_concurrency  the most builds of this stage at once
        concurrency_key  all stages with this key share `max_concurrency`, which is 1 unless it is given
        queue            the queue of its builds
        in_process       build in the pipeline's own process: for small, fast functions
        resources        what a build on workers needs, as in `app.task`: {"gpu": 1, "memory": "8 GB"}
        version          replaces the code: states are rebuilt only when it changes
        params           values that count as code; the function gets them by name
        filter           a CEL condition over the entity's variables, its `id` and the number of its `files`: other
                         entities are skipped. "hasFiles" is always true, because an entity without files does not exist
        code_of          what is hashed instead of the function, if that is only a wrapper
        """
        defaults = self.defaults
        options = StageOptions(
            min_size=min_size,
            check=None if check is None else check_function(f"stage of {output!r}: check=", check, "result"),
            schema=None if schema is None else dict(schema),
            max_concurrency=1 if max_concurrency is None and concurrency_key is not None else max_concurrency,
            queue=queue,
            priority=priority,
            budget=None if budget is None else parse_duration(budget, what="budget"),
            in_process=in_process,
            version=version,
            params=dict(params or {}),
            filter=None if filter == "hasFiles" else filter,
            on_edit=defaults.on_edit if on_edit is None else _one_of("on_edit", on_edit, ("rebuild", "adopt")),
            on_orphan=defaults.on_orphan if on_orphan is None else _one_of("on_orphan", on_orphan, get_args(OnOrphan)),
            backoff=defaults.backoff if backoff is None else _waits(backoff),
            approve_above=defaults.approve_above if approve_above == "as the pipeline" else approve_above,
            concurrency_key=concurrency_key,
            resources=None if resources is None else parse_resources(resources),
        )
        if in_process and resources is not None:
            raise ConfigError("resources= is for builds on workers: leave it out, or in_process=True")
        if options.max_concurrency is not None and options.max_concurrency < 1:
            raise ConfigError(f"a max_concurrency of {options.max_concurrency} would build nothing: use 1 or more")

        def declare(function: Function) -> Stage:
            wanted = name or getattr(function, "__name__", "")
            if wanted in self.stages:
                raise ConfigError(f"pipeline {self.name}: two stages are called {wanted!r}")
            collected = (collect,) if isinstance(collect, str) else tuple(collect)
            inputs, variables, free = read_patterns(f"stage {wanted}", input, Pattern(output), collected, scatter)
            made = Stage(
                self, function, wanted, inputs, Pattern(output), variables=variables, scatter=free, options=options
            )
            made.code_of = code_of
            remember_sources()
            self.stages[wanted] = made
            try:
                check_order(self.stages.values())
            except ConfigError:
                del self.stages[wanted]
                raise
            return made

        return declare

    def require(self, stage: str) -> Stage:
        """The stage of this name, or an error that lists the stages."""
        found = self.stages.get(stage)
        if found is None:
            known = ", ".join(self.stages) or "none"
            raise ConfigError(f"pipeline {self.name} has no stage {stage!r}; its stages: {known}")
        return found


def read_patterns(
    where: str,
    input: str | Sequence[str] | Mapping[str, str],
    output: Pattern,
    collect: tuple[str, ...],
    scatter: bool,
) -> tuple[list[Input], tuple[str, ...], tuple[str, ...]]:
    """The inputs, the entity's variables, and the output variables that the function chooses."""
    if output.has_glob or output.is_directory:
        raise ConfigError(f"{where}: the output {output.text!r} must name one file for each entity")
    named = {"": input} if isinstance(input, str) else dict(input) if isinstance(input, Mapping) else None
    if named is None:
        named = {str(at): text for at, text in enumerate(input)}
    if not named:
        raise ConfigError(f"{where}: it has no input")
    inputs: list[Input] = []
    every: dict[str, str] = {}
    for name, text in named.items():
        pattern = Pattern(f"{text}*" if text.endswith("/") else text)  # a directory means all its files
        for variable, kind in pattern.kinds.items():
            if every.setdefault(variable, kind) != kind:
                raise ConfigError(f"{where}: {variable} is {every[variable]} in one input and {kind} in another")
        key = tuple(variable for variable in pattern.variables if variable not in collect)
        inputs.append(Input(name, pattern, key))
    if unknown := [name for name in collect if name not in every]:
        raise ConfigError(f"{where}: collect={unknown[0]!r}, and no input has this variable")
    variables = tuple(name for name in every if name not in collect)
    if len(deep := [name for name in variables if every[name] == "**"]) > 1:
        raise ConfigError(f"{where}: only one of {', '.join(deep)} can match folders: entities could be mixed up")
    for name, kind in output.kinds.items():
        if name in every and (kind == "**") != (every[name] == "**"):
            raise ConfigError(f"{where}: {name} matches folders only in input or output: write {{{name}:**}} in both")
    # A part of a collected date identifies the entity: all days of a month.
    parts = tuple(name for name in output.variables if "." in name and name.partition(".")[0] in collect)
    free = tuple(name for name in output.variables if name not in variables and name not in parts)
    variables += parts
    if parts:
        inputs = [Input(one.name, one.pattern, one.key + _parts_in(parts, one.pattern)) for one in inputs]
    if free and not scatter:
        raise ConfigError(
            f"{where}: the output's {free[0]!r} is in no input; with scatter=True the function says which there are"
        )
    if scatter and not free:
        raise ConfigError(f"{where}: scatter=True, and the output has no variable that the function could choose")
    dropped = [name for name in variables if name not in output.variables]
    if dropped and not free:
        raise ConfigError(
            f"{where}: several {dropped[0]!r} would share one output; "
            f"with collect={dropped[0]!r} one build gets them all"
        )
    _check_joined(where, inputs)
    return inputs, variables, free


def _parts_in(parts: tuple[str, ...], pattern: Pattern) -> tuple[str, ...]:
    """The parts of dates that a pattern determines."""
    return tuple(part for part in parts if part.partition(".")[0] in pattern.variables)


def _check_joined(where: str, inputs: Sequence[Input]) -> None:
    """Check that all inputs with variables are connected by shared ones; otherwise the join is a cross product."""
    rest = [each for each in inputs if each.key]
    if not rest:
        return
    joined = set(rest.pop(0).key)
    while rest:
        following = next((each for each in rest if joined & set(each.key)), None)
        if following is None:
            raise ConfigError(f"{where}: {rest[0].pattern.text!r} shares no variable with the other inputs")
        joined |= set(following.key)
        rest.remove(following)


def patterns_of(stages: Sequence[Stage]) -> list[Pattern]:
    """The patterns of all inputs and outputs of stages, each once."""
    inputs = [one.pattern for stage in stages for one in stage.inputs]
    return list(dict.fromkeys([*inputs, *(stage.output for stage in stages)]))


def check_order(stages: Iterable[Stage]) -> list[Stage]:
    """Stages in topological order; an error for cycles, and for two stages that write the same path."""
    every = list(stages)
    for at, stage in enumerate(every):
        for other in every[:at]:
            if share_place(stage.pipeline, other.pipeline) and stage.output.overlaps(other.output):
                raise ConfigError(
                    f"stages {other.full_name} and {stage.full_name} both write {stage.output.text!r}: "
                    "a path must be written by one stage"
                )
    order: list[Stage] = []
    left = {id(stage): {id(maker) for maker in makers(stage, every)} for stage in every}
    while len(order) < len(every):
        ready = [stage for stage in every if id(stage) in left and not left[id(stage)]]
        if not ready:
            circle = " -> ".join(stage.full_name for stage in every if id(stage) in left)
            raise ConfigError(f"these stages form a cycle: {circle}")
        for stage in ready:
            order.append(stage)
            del left[id(stage)]
        for waits in left.values():
            waits -= {id(stage) for stage in ready}
    return order


def makers(stage: Stage, stages: Iterable[Stage]) -> list[Stage]:
    """The stages whose outputs a stage reads. A * never matches the outputs of its own stage."""
    return [
        other
        for other in stages
        if share_place(stage.pipeline, other.pipeline)
        and any(
            each.pattern.overlaps(other.output) and not (other is stage and each.pattern.has_glob)
            for each in stage.inputs
        )
    ]


def share_place(one: Pipeline, other: Pipeline) -> bool:
    """Whether a path is the same state in both pipelines."""
    if one.store is None and other.store is None:
        is_mixed = one.root.is_absolute() != other.root.is_absolute()  # Else it is told without the slow `absolute`.
        return one is other or one.root == other.root or (is_mixed and one.root.absolute() == other.root.absolute())
    return one is other or (one.store is not None and one.store == other.store)


def _around(pattern: Pattern) -> tuple[str, str] | None:
    """The text before and after a pattern's only variable, if that may have any value."""
    if len(pattern.variables) != 1 or pattern.text.count("{") != 1 or pattern.kinds[pattern.variables[0]] != "str":
        return None
    before, _, rest = pattern.text.partition("{")
    return before, rest.partition("}")[2]


def _condition(text: str, variables: Iterable[str]) -> Condition:
    from tidemill.core.expressions.conditions import Condition  # slow to load, and rarely needed

    return Condition(text, {*variables, "id", "files"})


def _waits(backoff: Iterable[Duration]) -> tuple[float, ...]:
    return tuple(parse_duration(each, what="backoff") for each in backoff)


def _one_of(what: str, value: Any, allowed: tuple[str, ...]) -> Any:
    if value not in allowed:
        raise ConfigError(f"{what}={value!r} is not one of {', '.join(allowed)}")
    return value
