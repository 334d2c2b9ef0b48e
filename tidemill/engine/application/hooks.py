"""Where a host program plugs in its own parts: each has a safe default, and `App(...)` takes them all.

    app = App("shop", node_resolver=find_node, invoke_context=with_tenant, workflow_provider=load_dag_from_our_table)

Tidemill imports nothing from a host; it is given these.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.expressions.refs import RefResolver
from tidemill.core.jobs.job import DEFAULT_QUEUE
from tidemill.engine.jobs.task import Task, TaskOptions, TaskRegistry, encode_result
from tidemill.engine.models.spec import ModelSpec


class NodeCall(msgspec.Struct, frozen=True):
    """A node that is about to run, as the host's invoke context gets it."""

    job: int
    attempt: int
    task: str
    queue: str
    run: int
    node: str
    args: Mapping[str, Any]


#: From the name of a task to the function that it stands for; None for a name that it does not know.
NodeResolver = Callable[[str], Callable[..., Any] | None]

#: Around every node: what it yields, if anything, is applied to the node's result, and only on success.
InvokeContext = Callable[[NodeCall], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]

#: From the name of a dag to its definition; None for a name that it does not know. May be async.
WorkflowProvider = Callable[[str], Any]

#: The models that a worker may load, asked for once when the worker starts.
ModelRegistrar = Callable[[], Iterable[ModelSpec]]


class Hooks(msgspec.Struct, frozen=True):
    """The parts of a host."""

    node_resolver: NodeResolver | None = None
    invoke_context: InvokeContext | None = None
    workflow_provider: WorkflowProvider | None = None
    model_registrar: ModelRegistrar | None = None
    ref_resolver: RefResolver | None = None


class ResolvingTasks(TaskRegistry):
    """The tasks of an application, those of its workflow files, and those that its host finds by name."""

    def __init__(
        self,
        resolve: NodeResolver | None,
        filed: Callable[[str], Task[Any, Any] | None],
        surround: Callable[[Task[Any, Any]], Task[Any, Any]] = lambda task: task,
    ) -> None:
        """`filed` returns what a file declares now; it is called every time, because files change."""
        super().__init__()
        self._resolve = resolve
        self._filed = filed
        self._surround = surround

    def __getitem__(self, name: str) -> Task[Any, Any]:
        found = self._tasks.get(name) or self._filed(name)
        if found is None and self._resolve is not None:
            function = _resolved(self._resolve, name)
            if function is not None:
                made = function if isinstance(function, Task) else Task(function, name, TaskOptions(DEFAULT_QUEUE))
                found = self._tasks[name] = self._surround(made)
        if found is None:
            raise KeyError(name)
        return found


async def within(context: InvokeContext, call: NodeCall, run: Callable[[], Any]) -> bytes | None:
    """Run a node inside the host's context; its result as JSON, after the host's finaliser.

    The context sees a failure, but cannot turn it into a success.
    """
    failure: BaseException | None = None
    async with AsyncExitStack() as stack:
        made = context(call)
        if hasattr(made, "__aenter__"):
            finalise = await stack.enter_async_context(made)  # pyright: ignore[reportArgumentType]
        else:
            finalise = stack.enter_context(made)  # pyright: ignore[reportArgumentType]
        try:
            result = await run()
            if callable(finalise):
                result = finalise(result)
                if inspect.isawaitable(result):
                    result = await result
            encoded = encode_result(call.task, result)
        except BaseException as error:
            failure = error
            raise
        return encoded
    raise failure or ConfigError("the host's invoke context left its node out")


def _resolved(resolve: NodeResolver, name: str) -> Callable[..., Any] | None:
    try:
        return resolve(name)
    except Exception as error:
        raise ConfigError(f"the host's node resolver failed for {name!r}: {type(error).__name__}: {error}") from error
