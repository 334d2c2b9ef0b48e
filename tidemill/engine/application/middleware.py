"""What surrounds each call of an application's functions: its middleware, and the objects that are injected.

    @contextmanager
    def timed(call: Invocation) -> Generator[None, None, None]:
        began = time.perf_counter()
        yield
        log.info("done", shape=call.shape, name=call.name, id=call.id, took=time.perf_counter() - began)

    app = App("shop", middleware=[timed])

Middleware is the same for all shapes: tasks, steps, tasks of streams, stages and folds. It is a context manager, plain
or async; the first one is the outermost. It sees an error and may raise another one, but cannot turn it into a success.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from functools import wraps
from typing import Any, Literal

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.jobs.injected import InjectedParameter, injected_parameters
from tidemill.engine.application.lifespan import Lifespan

Shape = Literal["task", "step", "stream task", "stage", "fold"]


class Invocation(msgspec.Struct):
    """A call of one of an application's functions, as middleware gets it."""

    shape: Shape
    name: str
    """The function's name: `send_receipt`, `Article.draft`, `spam/Classify.score`, `blog/page`, `machines`."""
    id: str
    """What it is called for: the number of a job or run, the id of a message, a path of a state, an entity."""
    arguments: Mapping[str, Any]
    """Its arguments by name, without those that are injected."""
    result: Any = None
    """What it has returned, once it has."""


#: A context manager around every call; what it yields is ignored.
Middleware = Callable[[Invocation], AbstractContextManager[Any] | AbstractAsyncContextManager[Any]]

Identify = Callable[[Mapping[str, Any]], str]


def surrounded(
    lifespan: Lifespan, shape: Shape, name: str, function: Callable[..., Any], identify: Identify
) -> Callable[..., Any]:
    """The function within the application's middleware and with its injected objects; itself, if there are none."""
    where = f"{shape} {name}"
    injected = injected_parameters(function, where=where)
    if not injected and not lifespan.middleware:
        return function
    lifespan.add_taker(where, injected)
    for parameter in injected:
        _check_provider(lifespan, parameter.annotation, ())
    call = _SurroundedCall(lifespan, shape, name, where, function, identify, injected)
    if inspect.isasyncgenfunction(function):

        @wraps(function)
        async def generate(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async for each in call.generate(args, kwargs):
                yield each

        return generate
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return await call.run_async(args, kwargs)

        return run_async

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return call.run(args, kwargs)

    return run


class _SurroundedCall:
    """How one function is called."""

    def __init__(
        self,
        lifespan: Lifespan,
        shape: Shape,
        name: str,
        where: str,
        function: Callable[..., Any],
        identify: Identify,
        injected: tuple[InjectedParameter, ...],
    ) -> None:
        self._lifespan = lifespan
        self._shape: Shape = shape
        self._name = name
        self._where = where
        self._function = function
        self._identify = identify
        self._injected = injected
        self._names = [name for name in inspect.signature(function).parameters if name != "self"]
        self._skip = 1 if next(iter(inspect.signature(function).parameters), "") == "self" else 0

    def _invocation(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Invocation:
        arguments = {**dict(zip(self._names, args[self._skip :], strict=False)), **kwargs}
        return Invocation(self._shape, self._name, self._identify(arguments), arguments)

    async def run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        invocation = self._invocation(args, kwargs)
        async with AsyncExitStack() as stack:
            await self._enter_async(stack, invocation, kwargs)
            invocation.result = await self._function(*args, **kwargs)
        return invocation.result

    async def generate(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            await self._enter_async(stack, self._invocation(args, kwargs), kwargs)
            async for each in self._function(*args, **kwargs):
                yield each

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        invocation = self._invocation(args, kwargs)
        with ExitStack() as stack:
            for each in self._lifespan.middleware:
                self._enter(stack, _manager_of(each, invocation), _name_of(each))
            made: dict[Any, Any] = {}
            for parameter in self._injected:
                if parameter.name not in kwargs:
                    kwargs[parameter.name] = self._object(stack, parameter, made)
            invocation.result = self._function(*args, **kwargs)
        return invocation.result

    # -- entering ---------------------------------------------------------------------------------

    async def _enter_async(self, stack: AsyncExitStack, invocation: Invocation, kwargs: dict[str, Any]) -> None:
        for each in self._lifespan.middleware:
            await _entered(stack, _manager_of(each, invocation))
        made: dict[Any, Any] = {}
        for parameter in self._injected:
            if parameter.name not in kwargs:
                kwargs[parameter.name] = await self._object_async(stack, parameter, made)

    async def _object_async(self, stack: AsyncExitStack, parameter: InjectedParameter, made: dict[Any, Any]) -> Any:
        """The object of a parameter: that of the process, or one that is made for this call."""
        key = parameter.annotation
        provider = self._lifespan.provider(key)
        if provider is None:
            return self._lifespan.find(key, f"{self._where}, parameter {parameter.name}")
        if key not in made:
            needs = {each.name: await self._object_async(stack, each, made) for each in _needs(provider)}
            given = provider(**needs)
            given = await given if inspect.isawaitable(given) else given
            made[key] = _checked(key, await _entered(stack, given) if _is_manager(given) else given, provider)
        return made[key]

    def _object(self, stack: ExitStack, parameter: InjectedParameter, made: dict[Any, Any]) -> Any:
        """The same for plain code."""
        key = parameter.annotation
        provider = self._lifespan.provider(key)
        if provider is None:
            return self._lifespan.find(key, f"{self._where}, parameter {parameter.name}")
        if key not in made:
            given = provider(**{each.name: self._object(stack, each, made) for each in _needs(provider)})
            if inspect.iscoroutine(given):
                given = self._wait(given, _name_of(provider))
            given = self._enter(stack, given, _name_of(provider)) if _is_manager(given) else given
            made[key] = _checked(key, given, provider)
        return made[key]

    def _enter(self, stack: ExitStack, manager: Any, what: str) -> Any:
        """Enter a context manager from plain code; an async one runs on the event loop of the lifespan."""
        if not hasattr(manager, "__aenter__"):
            value = manager.__enter__()
            stack.push(lambda *error: _still(manager.__exit__(*error)))
            return value
        value = self._wait(manager.__aenter__(), what)
        stack.push(lambda *error: _still(self._wait(manager.__aexit__(*error), what)))
        return value

    def _wait(self, work: Coroutine[Any, Any, Any], what: str) -> Any:
        """The result of a coroutine, for plain code. What it sets in the context is set here, too."""
        if asyncio._get_running_loop() is not None:
            return _run_now(work, f"{self._where}: {what}")
        context, loop = contextvars.copy_context(), self._lifespan.loop
        if loop is None or loop.is_closed():
            work.close()
            raise ConfigError(f"{self._where}: {what} is async, and no event loop runs in this process")
        done = asyncio.run_coroutine_threadsafe(_in_context(work, context), loop)
        result = done.result()
        for variable, value in context.items():
            if variable.get(None) is not value:
                variable.set(value)
        return result


async def _in_context(work: Coroutine[Any, Any, Any], context: contextvars.Context) -> Any:
    return await asyncio.get_running_loop().create_task(work, context=context)


def _run_now(work: Coroutine[Any, Any, Any], what: str) -> Any:
    """The result of a coroutine that does not wait for anything: a fold is called on the event loop itself."""
    try:
        work.send(None)
    except StopIteration as ended:
        return ended.value
    work.close()
    raise ConfigError(f"{what} waits for something, and a plain function on the event loop cannot: make it plain")


async def _entered(stack: AsyncExitStack, manager: Any) -> Any:
    if not hasattr(manager, "__aenter__"):
        value = manager.__enter__()
        stack.push(lambda *error: _still(manager.__exit__(*error)))
        return value

    async def leave(*error: Any) -> None:
        await manager.__aexit__(*error)

    value = await manager.__aenter__()
    stack.push_async_exit(leave)
    return value


def _still(_hidden: bool | None) -> None:
    """An error stays one, also if a context manager wants to hide it."""


def _manager_of(middleware: Middleware, invocation: Invocation) -> Any:
    given = middleware(invocation)
    if _is_manager(given):
        return given
    raise ConfigError(f"middleware {_name_of(middleware)} gave {given!r:.100}, which is not a context manager")


def _checked(key: Any, made: Any, provider: Callable[..., Any]) -> Any:
    """What a dependency has made, if it is what its annotation says."""
    if isinstance(key, type) and not getattr(key, "_is_protocol", False) and not isinstance(made, key):
        what = "None" if made is None else f"a {type(made).__name__}"
        raise ConfigError(f"the dependency {_name_of(provider)} made {what}, and not a {key.__name__}")
    return made


def _is_manager(given: Any) -> bool:
    return isinstance(given, AbstractContextManager | AbstractAsyncContextManager)


def _needs(provider: Callable[..., Any]) -> tuple[InjectedParameter, ...]:
    return injected_parameters(provider, where=f"the dependency {_name_of(provider)}")


def _check_provider(lifespan: Lifespan, annotation: Any, path: tuple[Any, ...]) -> None:
    """Let the lifespan check what the provider of an annotation takes; a `ConfigError` if it needs itself."""
    provider = lifespan.dependencies.get(annotation)
    if provider is None:
        return
    if annotation in path:
        raise ConfigError(f"the dependency {_name_of(provider)} needs itself, directly or through others")
    needs = _needs(provider)
    lifespan.add_taker(f"the dependency {_name_of(provider)}", needs)
    for each in needs:
        _check_provider(lifespan, each.annotation, (*path, annotation))


def _name_of(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)
