"""The lifespan of an application: what its processes open before they take work, and close at their end.

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncGenerator[object, None]:
        async with AsyncClient() as http, create_pool(URL) as pool:
            yield http, pool              # what parameters marked with INJECTED get, by their annotation

Every process that runs functions of the application opens it once. A hook that fails, or has not started in time, is
tried again; until then the process takes no work, and says why: in its log, `tidemill workers` and `/readyz`. One that
has ended its process three times is not called for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypeVar, get_args, get_origin
from weakref import WeakKeyDictionary

import structlog

from tidemill.core.errors import ConfigError, TidemillError, words_of
from tidemill.core.jobs.injected import InjectedParameter
from tidemill.engine.containment.crash_record import RefusedCallError, call_key, crash_record
from tidemill.engine.containment.exit_status import EXIT_BLOCKED, exit_now
from tidemill.engine.event_wait import wait_for_event

log = structlog.get_logger("tidemill.lifespan")

START_SECONDS = 60.0
CLOSE_SECONDS = 10.0
CANCEL_SECONDS = 5.0
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

A = TypeVar("A")

#: What an application gives: a context manager, plain or async, that yields the objects to inject.
LifespanHook = Callable[[A], AbstractAsyncContextManager[Any] | AbstractContextManager[Any]]

#: Makes an object for one call: a function, plain or async, or one that returns a context manager.
Provider = Callable[..., Any]

_troubles: dict[Lifespan, str] = {}


class LifespanError(TidemillError):
    """The lifespan of an application failed, or has not started in time."""


def lifespan_trouble() -> str | None:
    """Why this process takes no work, if a lifespan is the reason."""
    return next(iter(_troubles.values()), None)


def make_lifespan(app: Any, name: str, lifespan: Any, middleware: Any, dependencies: Any) -> Lifespan:
    """The lifespan of an application; a `ConfigError` for what cannot be called as a hook, middleware or dependency."""
    if lifespan is not None and not _takes_one(lifespan):
        raise ConfigError(f"lifespan={lifespan!r:.100} is not a function that takes the application")
    if not isinstance(middleware, Iterable):
        raise ConfigError(f"middleware={middleware!r:.100} is not a list of functions, such as [timed]")
    middleware = tuple(middleware)
    if wrong := [each for each in middleware if not _takes_one(each)]:
        raise ConfigError(f"middleware {wrong[0]!r:.100} is not a function that takes the Invocation, and only that")
    for each in middleware:
        if (decorator := _missing_decorator(each)) is not None:
            raise ConfigError(f"middleware {each!r:.100} is not a context manager: decorate it with {decorator}")
    if not isinstance(dependencies or {}, Mapping):
        raise ConfigError(f"dependencies={dependencies!r:.100} is not a dict, such as {{Session: open_session}}")
    for key, provider in (dependencies or {}).items():
        if not callable(provider):
            raise ConfigError(f"dependencies: {provider!r:.100} is not a function that makes {key!r:.100}")
        if isinstance(key, str):
            raise ConfigError(f"dependencies: {key!r:.100} is a text; write the annotation itself: {{{key}: ...}}")
        if missing := _unfilled(provider):
            raise ConfigError(
                f"dependencies: {provider!r:.90} needs {missing!r}, which nothing gives: give it a default or INJECTED"
            )
    return Lifespan(name, lifespan and partial(lifespan, app), middleware, dependencies)


def _missing_decorator(function: Any) -> str | None:
    """What makes a context manager of a function that is none."""
    if inspect.isgeneratorfunction(function):
        return "@contextmanager"
    is_async = inspect.isasyncgenfunction(function) or inspect.iscoroutinefunction(function)
    return "@asynccontextmanager" if is_async else None


def _unfilled(provider: Any) -> str | None:
    """A parameter of a dependency that is neither injected nor has a default."""
    try:
        parameters = inspect.signature(provider).parameters.values()
    except (TypeError, ValueError):  # It is built in, and has no signature.
        return None
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return next((each.name for each in parameters if each.default is each.empty and each.kind not in several), None)


def _takes_one(function: Any) -> bool:
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # It is built in, and has no signature.
        return callable(function)
    return True


class Lifespan:
    """The lifespan of one application in this process, shared by all of its roles."""

    def __init__(
        self,
        application: str = "",
        hook: Callable[[], Any] | None = None,
        middleware: Iterable[Any] = (),
        dependencies: Mapping[Any, Provider] | None = None,
        *,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self.application = application
        self.hook = hook
        self.middleware = tuple(middleware)
        self.dependencies = dict(dependencies or {})
        self.overrides: dict[Any, Any] = {}
        """What tests inject in place of the real objects."""
        self.start_seconds = start_seconds
        self.loop: asyncio.AbstractEventLoop | None = None
        self._takers: list[tuple[str, InjectedParameter]] = []
        self._provided: dict[Any, Any] = {}
        self._users = 0
        self._task: asyncio.Task[None] | None = None
        self._made: Any = None
        self._closing = asyncio.Event()
        self._locks: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to open or to inject."""
        return self.hook is not None or bool(self._takers or self.middleware)

    @property
    def is_open(self) -> bool:
        return self._users > 0

    # -- opening ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Open it for the block; raises `LifespanError` if that fails."""
        await self._open()
        try:
            yield
        finally:
            await self._close()

    @asynccontextmanager
    async def opened_patiently(self, stopped: asyncio.Event) -> AsyncIterator[bool]:
        """Open it for the block, trying again until it works; False if `stopped` was set before."""
        pause = FIRST_PAUSE
        while not await self._try_open(stopped, pause):
            if await wait_for_event(stopped, pause):
                _troubles.pop(self, None)
                yield False
                return
            pause = min(pause * 2, LONGEST_PAUSE)
        try:
            yield True
        finally:
            await self._close()

    async def watch(self) -> None:
        """Return when it is closed; raises `LifespanError` if the hook ends before that."""
        task = self._task
        if task is None:  # There is no hook.
            return
        await asyncio.wait([task])
        if not self._closing.is_set():
            raise LifespanError(f"{self._name} ended while its process was at work{_because(_error_of(task))}")

    @contextlib.contextmanager
    def opened_in_thread(self) -> Iterator[None]:
        """Open it for a block of plain code, on an event loop in a thread of its own."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="tidemill-lifespan", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._open(), loop).result()
            try:
                yield
            finally:
                asyncio.run_coroutine_threadsafe(self._close(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(CANCEL_SECONDS)

    async def _try_open(self, stopped: asyncio.Event, pause: float) -> bool:
        opening = asyncio.ensure_future(self._open())
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait([opening, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
            if opening.cancelled():
                return False
            opening.result()
        except (LifespanError, ConfigError) as error:
            _troubles[self] = f"takes no work: {error}"
            log.error("TAKING NO WORK: the lifespan cannot be opened", why=str(error), again_in=pause)
            return False
        finally:
            stopping.cancel()
        _troubles.pop(self, None)
        return True

    async def _open(self) -> None:
        async with self._lock():
            if self._users == 0:
                await self._enter()
            self._users += 1

    async def _close(self) -> None:
        async with self._lock():
            self._users -= 1
            if self._users == 0:
                await self._exit()

    def _lock(self) -> asyncio.Lock:
        return self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())

    async def _enter(self) -> None:
        self.loop = asyncio.get_running_loop()
        if self.hook is None:
            self.check()
            return
        record, key = crash_record(), call_key("lifespan", self.application)
        record.count_death("lifespan")
        try:
            slot = record.begin(key)
        except RefusedCallError as error:
            raise LifespanError(f"{self._name} is not opened: {error}") from None
        try:
            await self._start(self.loop, self.hook)
        except BaseException as error:
            record.end_by(slot, error)
            raise
        record.end(slot)
        record.clear(key)

    async def _start(self, loop: asyncio.AbstractEventLoop, hook: Callable[[], Any]) -> None:
        started: asyncio.Future[None] = loop.create_future()
        self._closing = asyncio.Event()
        self._task = task = asyncio.create_task(self._hold(hook, started, self._closing), name=self._name)
        blocked = threading.Timer(self.start_seconds + CANCEL_SECONDS, self._blocked, [threading.get_ident(), started])
        blocked.daemon = True
        blocked.start()
        try:
            done, _ = await asyncio.wait([started], timeout=self.start_seconds)
            if done:
                started.result()
                self.check()
                return
            late = LifespanError(f"{self._name} has not started within {self.start_seconds:g} s{self._place()}")
        except BaseException:
            await self._abandon(task)
            raise
        finally:
            blocked.cancel()
        await self._abandon(task)
        raise late

    async def _hold(self, hook: Callable[[], Any], started: asyncio.Future[None], closing: asyncio.Event) -> None:
        """Keep the hook open: one task enters and leaves it, as cancel scopes and task groups require."""
        try:
            async with AsyncExitStack() as stack:
                made = self._made = hook()
                if hasattr(made, "__aenter__"):
                    given = await stack.enter_async_context(made)
                elif hasattr(made, "__enter__"):
                    given = stack.enter_context(made)
                else:
                    raise ConfigError(
                        f"{self._name} gave a {type(made).__name__}: decorate it with @asynccontextmanager"
                    )
                self._provided = read_provided(given)
                started.set_result(None)
                await closing.wait()
        except BaseException as error:
            if started.done():
                raise
            if isinstance(error, asyncio.CancelledError):
                started.cancel()
                raise
            failure = LifespanError(
                f"{self._name} failed: {type(error).__name__}: {words_of(error)}{_raised_at(error)}"
            )
            failure.__cause__ = error
            started.set_exception(failure)
        finally:
            self._provided = {}

    async def _exit(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        self._closing.set()
        _, late = await asyncio.wait([task], timeout=CLOSE_SECONDS)
        if late:
            log.error("the lifespan has not closed in time: it is cancelled", name=self._name, where=self._place())
            await self._abandon(task)
        elif (error := _error_of(task)) is not None:
            log.error("the lifespan failed while it closed", name=self._name, exc_info=error)

    async def _abandon(self, task: asyncio.Task[None]) -> None:
        """End a hook; one that swallows its cancellation is left behind."""
        self._task = None
        task.cancel()
        _, left = await asyncio.wait([task], timeout=CANCEL_SECONDS)
        if left:
            log.error("the lifespan swallows its cancellation: it is left behind", name=self._name, where=self._place())
        else:
            _error_of(task)

    def _blocked(self, thread: int, started: asyncio.Future[None]) -> None:
        """End the process if the hook keeps the event loop from turning: its supervisor starts another."""
        if started.done() or _error_of(self._task) is not None:
            return
        frame = sys._current_frames().get(thread)
        stack = "" if frame is None else "".join(traceback.format_stack(frame)[-5:])
        log.error("the lifespan blocks the event loop: ending the process", name=self._name, stack=stack)
        exit_now(EXIT_BLOCKED)

    def _place(self) -> str:
        """Where the hook waits, if it is a generator."""
        generator = getattr(self._made, "gen", None)
        frame = getattr(generator, "ag_frame", None) or getattr(generator, "gi_frame", None)
        return "" if frame is None else f": it waits at {frame.f_code.co_filename}:{frame.f_lineno}"

    @property
    def _name(self) -> str:
        return f"the lifespan of application {self.application}"

    # -- injecting --------------------------------------------------------------------------------

    def add_taker(self, where: str, parameters: Iterable[InjectedParameter]) -> None:
        """Remember what a declared function takes, so that it is checked before the process takes work."""
        self._takers += [(where, each) for each in parameters]

    def check(self) -> None:
        """Raise a `ConfigError` if a declared function takes something that is not there."""
        for where, parameter in self._takers:
            if self.dependencies.get(parameter.annotation) is None:
                self.find(parameter.annotation, f"{where}, parameter {parameter.name}")

    def provider(self, annotation: Any) -> Provider | None:
        """What makes the object of an annotation for each call, if it is made for each call."""
        return None if annotation in self.overrides else self.dependencies.get(annotation)

    def find(self, annotation: Any, where: str) -> Any:
        """The object that an annotation means."""
        for known in (self.overrides, self._provided):
            if annotation in known:
                return known[annotation]
        kind = _class_of(annotation)
        if kind is not None and not _is_qualified(annotation):
            for known in (self.overrides, self._provided):
                fits = [value for value in known.values() if isinstance(value, kind)]
                if len(fits) == 1:
                    return fits[0]
                if fits:
                    raise ConfigError(
                        f"{where}: {len(fits)} objects of the lifespan are a {kind.__name__}: let it yield a dict with "
                        "an annotation for each, such as {Annotated[Pool, 'replica']: pool}"
                    )
        if self.hook is not None and not self._provided and self._task is None:
            raise ConfigError(f"{where}: the lifespan of application {self.application} is not open in this process")
        given = ", ".join(_shown(each) for each in (*self.overrides, *self._provided, *self.dependencies)) or "nothing"
        raise ConfigError(f"{where}: nothing provides {_shown(annotation)}; the lifespan and dependencies give {given}")


def read_provided(given: Any) -> dict[Any, Any]:
    """What a lifespan has yielded, by annotation: nothing, an object, several, or a dict."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[Any, Any] = {}
    for each in given if isinstance(given, tuple | list) else (given,):
        if type(each) in found:
            raise ConfigError(
                f"the lifespan yields two objects of class {type(each).__name__}: yield a dict with an annotation for "
                "each, such as {Annotated[Pool, 'replica']: pool}"
            )
        found[type(each)] = each
    return found


def _class_of(annotation: Any) -> type | None:
    found = get_origin(annotation) or annotation
    return found if isinstance(found, type) else None


def _is_qualified(annotation: Any) -> bool:
    return get_origin(annotation) is Annotated and len(get_args(annotation)) > 1


def _shown(annotation: Any) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _raised_at(error: BaseException) -> str:
    trace = traceback.extract_tb(error.__traceback__)
    return f" ({trace[-1].filename}:{trace[-1].lineno})" if trace else ""


def _error_of(task: asyncio.Task[Any] | None) -> BaseException | None:
    return task.exception() if task is not None and task.done() and not task.cancelled() else None


def _because(error: BaseException | None) -> str:
    return "" if error is None else f": {type(error).__name__}: {words_of(error)}"
