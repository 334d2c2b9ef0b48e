"""The declaration of a dag and its nodes, as plain data that is the same in Python and in a file.

    nightly = Dag("nightly", nodes=[
        node("extract", "etl.extract", args={"day": ref("$.run.day")}, queue="fetch"),
        input_node("approve", prompt="Load {{$.extract.rows}} rows?", schema={"type": "object"}),
        node("embed", "etl.embed", deps=["extract"], queue="gpu", budget="10m"),
        node("load", "etl.load", deps=["approve", "embed"], args={"rows": {"$from": "extract.rows"}},
             skip_if={"$eq": [{"$from": "approve.answer"}, "no"]}),
    ])

A node runs when all its dependencies have succeeded or were skipped. Without `deps`, it depends on the nodes that its
refs read; with `deps`, its refs may read only nodes that always end before it starts. In refs, `run` is the arguments
of the run, and `item` and `index` are the current item in a node with `map`. A dag is validated when it is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal

import msgspec
from typing_extensions import TypeVar

from tidemill.core.codec import decode, encode
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.expressions.paths import kind_of
from tidemill.core.retry import RetryPolicy, retry as retry_policy

OnFailure = Literal["fail_run", "continue"]
SkipWith = Literal["all", "any", "none"]

RUN = "run"
MOST_ITEMS = 10_000

UNSET: Any = msgspec.UNSET
ArgsT = TypeVar("ArgsT", default=Any)


class _Declared(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True, forbid_unknown_fields=True
):
    """The base class of all nodes."""


class TaskNode(_Declared, frozen=True, tag="task"):
    """A node that runs a task as a job; with `map`, one job for each item of a list. Create one with `node(...)`."""

    name: str
    task: str
    args: dict[str, Any] = {}
    deps: tuple[str, ...] | None = None
    queue: str | None = None
    priority: int | None = None
    budget: float | None = None
    stall: float | None = None
    required_model: str | None = None
    retry: RetryPolicy | None = None
    skip_if: Any = None
    skip_with: SkipWith = "all"
    on_failure: OnFailure = "fail_run"
    map: Any = None
    max_concurrency: int | None = None
    tolerate: int = 0
    about: str = ""


class InputNode(_Declared, frozen=True, tag="input"):
    """A node that waits for a person's answer. Create one with `input_node(...)`."""

    name: str
    prompt: str
    schema: dict[str, Any] | bool | None = None
    timeout: float | None = None
    default: Any = UNSET
    deps: tuple[str, ...] | None = None
    skip_if: Any = None
    skip_with: SkipWith = "all"
    on_failure: OnFailure = "fail_run"
    about: str = ""


class SubDag(_Declared, frozen=True, tag="dag"):
    """A node that is a whole dag, with `args` as the arguments of its run. Create one with `sub_dag(...)`."""

    name: str
    dag: Dag
    args: dict[str, Any] = {}
    deps: tuple[str, ...] | None = None
    skip_if: Any = None
    skip_with: SkipWith = "all"
    on_failure: OnFailure = "fail_run"
    about: str = ""


Node = TaskNode | InputNode | SubDag


class Dag(msgspec.Struct, Generic[ArgsT], frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Nodes and their dependencies. `result` is the result of a run: refs, or else the results of the last nodes.

    `args` declares the arguments of its runs: a dataclass, Struct or pydantic model, or a JSON Schema.
    """

    name: str
    nodes: Sequence[Node]
    result: Any = None
    about: str = ""
    if TYPE_CHECKING:
        args: type[ArgsT] | dict[str, Any] | None = None
    else:
        args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        from tidemill.dags.definition.check import check_dag  # a circular import at module level
        from tidemill.dags.definition.run_args import schema_of_args

        if self.args is not None:
            msgspec.structs.force_setattr(self, "args", schema_of_args(self.args, self.name))
        msgspec.structs.force_setattr(self, "nodes", tuple(self.nodes))
        if self.result is not None:
            msgspec.structs.force_setattr(self, "result", plain(self.result, f"dag {self.name!r}: result"))
        check_dag(self)

    def to_json(self) -> bytes:
        """Encode the dag as JSON; `Dag.from_json` decodes it."""
        return encode(self)

    @classmethod
    def from_json(cls, data: bytes | str) -> Dag[Any]:
        """Decode a dag that `to_json` has encoded. `tidemill.dags.definition.files` loads hand-written files."""
        try:
            return msgspec.json.decode(data, type=Dag)
        except msgspec.MsgspecError as error:
            raise PayloadError(f"this is not a dag: {error}") from error


def node(
    name: str,
    task: str,
    *,
    args: Mapping[str, Any] | None = None,
    deps: Sequence[str] | None = None,
    queue: str | None = None,
    priority: int | None = None,
    budget: Duration | None = None,
    stall: Duration | None = None,
    required_model: str | None = None,
    retry: RetryPolicy | int | Mapping[str, Any] | None = None,
    skip_if: Any = None,
    skip_with: SkipWith = "all",
    on_failure: OnFailure = "fail_run",
    map: Any = None,
    max_concurrency: int | None = None,
    tolerate: int = 0,
    about: str = "",
) -> TaskNode:
    """Create a node that runs a task.

    The defaults of queue, priority, budget, stall and retry are those of the task. `skip_if` is a ref that is true or
    false, or a condition in CEL as text. `skip_with` says which skipped deps cause the node to be skipped: `all` of
    them, `any` of them, or `none`. `on_failure` says whether its failure ends the run at once (`fail_run`), or only
    after everything that does not depend on it (`continue`). With `map`, a ref to a list, there is one job for each
    item, at most `max_concurrency` at a time; the result is the list of their results, in order, with null for each
    item that failed. Up to `tolerate` items may fail.
    """
    known = getattr(task, "name", None) or getattr(task, "__name__", None)
    if known is not None:
        raise ConfigError(f"node {name!r}: task= takes the name of a task, {known!r}, not the task")
    return _made(
        TaskNode,
        name,
        task=task,
        args=dict(args or {}),
        deps=deps,
        queue=queue,
        priority=priority,
        budget=_seconds(budget, name, "budget"),
        stall=_seconds(stall, name, "stall"),
        required_model=required_model,
        retry=None if retry is None else _named(name, lambda: read_retry(retry)),
        skip_if=skip_if,
        skip_with=skip_with,
        on_failure=on_failure,
        map=map,
        max_concurrency=max_concurrency,
        tolerate=tolerate,
        about=about,
    )


def input_node(
    name: str,
    *,
    prompt: str,
    schema: Mapping[str, Any] | bool | None = None,
    timeout: Duration | None = None,
    default: Any = UNSET,
    deps: Sequence[str] | None = None,
    skip_if: Any = None,
    skip_with: SkipWith = "all",
    on_failure: OnFailure = "fail_run",
    about: str = "",
) -> InputNode:
    """Create a node that waits for a person's answer, which must fit the JSON Schema and is the node's result.

    After `timeout` the answer is the `default`; without a default the node fails.
    """
    given = {} if default is UNSET else {"default": default}
    return _made(
        InputNode,
        name,
        prompt=prompt,
        schema=schema if isinstance(schema, bool) or schema is None else dict(schema),
        timeout=_seconds(timeout, name, "timeout"),
        deps=deps,
        skip_if=skip_if,
        skip_with=skip_with,
        on_failure=on_failure,
        about=about,
        **given,
    )


def sub_dag(
    name: str,
    dag: Dag,
    *,
    args: Mapping[str, Any] | None = None,
    deps: Sequence[str] | None = None,
    skip_if: Any = None,
    skip_with: SkipWith = "all",
    on_failure: OnFailure = "fail_run",
    about: str = "",
) -> SubDag:
    """Create a node that is a whole dag: its nodes are named `name/node`, and its `run` is `args`."""
    made = _made(
        SubDag,
        name,
        dag={"name": "stand_in", "nodes": [{"kind": "task", "name": "stand_in", "task": "stand_in"}]},
        args=dict(args or {}),
        deps=deps,
        skip_if=skip_if,
        skip_with=skip_with,
        on_failure=on_failure,
        about=about,
    )
    if not isinstance(dag, Dag):
        raise ConfigError(f"node {name!r}: dag is a {type(dag).__name__}, not a Dag")
    return msgspec.structs.replace(made, dag=dag)


def plain(value: Any, what: str) -> Any:
    """Convert a value to plain JSON data; a `ConfigError` names what has no JSON form."""
    try:
        return decode(encode(value))
    except PayloadError as error:
        raise ConfigError(f"{what}: {error}") from error


def _made(kind: Any, name: str, **fields: Any) -> Any:
    """Create a node with validated fields of plain data."""
    if isinstance(fields["deps"], str):
        raise ConfigError(
            f"node {name!r}: deps={fields['deps']!r} is a single string; write a list, such as ['extract']"
        )
    data = plain({"kind": kind.__struct_config__.tag, "name": name, **fields}, f"node {name!r}")
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"node {name!r}: {error}") from error


def read_retry(given: Any) -> RetryPolicy:
    """Convert a number of attempts, or the fields of a retry policy, to a policy."""
    if isinstance(given, RetryPolicy):
        return given
    if isinstance(given, int):
        return retry_policy(given)
    if not isinstance(given, Mapping):
        raise ConfigError(f"a retry policy must be an object or a number of attempts, but this is {kind_of(given)}")
    try:
        return retry_policy(**given)
    except TypeError as error:
        raise ConfigError(f"this is not a retry policy: {str(error).removeprefix('retry() ')}") from error


def _named(name: str, make: Callable[[], Any]) -> Any:
    """Call a function, and name the node in its `ConfigError`."""
    try:
        return make()
    except ConfigError as error:
        raise ConfigError(f"node {name!r}: {error}") from error


def _seconds(value: Duration | None, name: str, field: str) -> float | None:
    return None if value is None else parse_duration(value, what=f"node {name!r}: {field}")


def queues_of(dag: Dag) -> list[str]:
    """Return the queues that the nodes of a dag name, including those of its sub-dags."""
    found: list[str] = []
    for each in dag.nodes:
        if isinstance(each, SubDag):
            found += queues_of(each.dag)
        elif isinstance(each, TaskNode) and each.queue is not None:
            found.append(each.queue)
    return list(dict.fromkeys(found))
