"""Warm models: loaded once in a worker process, shared by its jobs, kept as long as memory allows.

    minilm = ModelSpec("minilm", load=load_minilm, memory="100 MB")
    app = App("search", models=[minilm], model_memory="2 GB")

    @app.task(queue="gpu", required_model="minilm")
    def embed(texts: list[str]) -> list[list[float]]:
        return current_job().model("minilm").encode(texts)

A job with a required model starts when the model is loaded, and the model stays until the job has ended. A task may
request others by name: `job.model(name)` in a plain function, `await job.load_model(name)` in an async one. `Eviction`
decides what is loaded and unloaded; this module carries that out and waits for it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

import msgspec
import structlog

from tidemill.core.clock import SYSTEM_CLOCK, Clock
from tidemill.core.duration import format_duration
from tidemill.core.errors import ConfigError, words_of
from tidemill.core.limits.memory_size import format_memory
from tidemill.engine.models.eviction import Command, Eviction, Footprint, Grant, Load, ModelRequest, RefuseModel, Unload
from tidemill.engine.models.spec import ModelError, ModelSpec, check_budget, read_specs, require_model

log = structlog.get_logger("tidemill.models")

REST_EVERY = 1.0
LAST_UNLOADS = 10.0
_LOOK_UP = 0.2


class ModelFigures(msgspec.Struct):
    """Statistics of one model in this process. A hit is a use that found it loaded."""

    name: str
    memory: int
    phase: str = "absent"
    users: int = 0
    loads: int = 0
    hits: int = 0
    failures: int = 0
    evictions: int = 0
    idle_unloads: int = 0
    load_seconds: float = 0.0


class ModelCache:
    """The models of one worker process. Safe to use from any thread once it has been started on an event loop."""

    def __init__(self, specs: Iterable[ModelSpec], *, budget: int | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        self.specs = read_specs(specs)
        check_budget(self.specs.values(), budget)
        self.loaded_at: float | None = None  # monotonic time of the end of the last load
        self._clock = clock
        self._eviction = Eviction(
            {spec.name: Footprint(spec.memory, spec.pinned, spec.idle) for spec in self.specs.values()}, budget
        )
        self._values: dict[str, Any] = {}
        self._figures = {spec.name: ModelFigures(spec.name, spec.memory) for spec in self.specs.values()}
        # A future signals that a model is loaded without referencing it, so that it can be freed.
        self._waiting: dict[ModelRequest, Future[None]] = {}
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def budget(self) -> int | None:
        return self._eviction.budget

    @property
    def taken(self) -> int:
        """Bytes of all loaded models, as declared."""
        with self._lock:
            return self._eviction.taken

    def start(self) -> None:
        """Bind to the running event loop, and begin to load pinned models."""
        self._loop = asyncio.get_running_loop()
        for spec in self.specs.values():
            if spec.pinned:
                use = self.use()
                use.ask(spec.name).add_done_callback(lambda _, use=use: use.close())

    async def unload_idle(self) -> None:
        """Unload idle models, until cancelled."""
        while True:
            await asyncio.sleep(REST_EVERY)
            self.rest()

    def rest(self) -> None:
        """Unload models that have been idle for too long."""
        self._decide(self._eviction.rest)

    async def close(self) -> None:
        """Unload every unused model, and load no more."""
        self._decide(self._eviction.close)
        await asyncio.to_thread(self._wait_for_moves, LAST_UNLOADS)

    def use(self) -> ModelUse:
        """A job's access to models: what it gets stays loaded until it is closed."""
        return ModelUse(self)

    def warm(self) -> list[str]:
        """The models that are loaded or loading."""
        with self._lock:
            return self._eviction.warm()

    def value(self, name: str) -> Any:
        """A loaded model; only for a job that was granted it."""
        return self._values[name]

    def in_use(self) -> list[str]:
        """The models that a job is using now."""
        with self._lock:
            return [name for name, standing in self._eviction.standings.items() if standing.users]

    def fits_beside(self, model: str, others: Iterable[str]) -> bool:
        """Whether a model can be loaded together with these and all pinned ones."""
        return self._eviction.fits_beside(model, others)

    def figures(self) -> list[ModelFigures]:
        """The statistics of each model, and its current status."""
        with self._lock:
            for name, figures in self._figures.items():
                standing = self._eviction.standings.get(name)
                figures.phase = "absent" if standing is None else standing.phase
                figures.users = 0 if standing is None else len(standing.users)
            return [msgspec.structs.replace(figures) for figures in self._figures.values()]

    # -- internals: decide under the lock, act outside of it ---------------------------------------

    def _decide(self, decision: Callable[..., list[Command]], *args: Any) -> None:
        with self._lock:
            acts = [self._prepare(command) for command in decision(*args, self._clock.monotonic())]
            self._moved.notify_all()
        for act in acts:
            act()

    def _ask(self, name: str, user: ModelUse) -> Future[None]:
        require_model(name, self.specs)
        if self._loop is None:
            raise ConfigError(f"model {name} was requested before its cache was started")
        future: Future[None] = Future()

        def ask(now: float) -> list[Command]:
            request = ModelRequest(name, user)
            self._waiting[request] = future
            return [RefuseModel(request, "its job has ended")] if user.closed else self._eviction.ask(request, now)

        self._decide(ask)
        return future

    def _leave(self, user: ModelUse) -> None:
        left: list[Future[None]] = []

        def leave(now: float) -> list[Command]:
            user.closed = True
            left.extend(self._waiting.pop(ask) for ask in list(self._waiting) if ask.user is user)
            return self._eviction.leave(user, now)

        self._decide(leave)
        for future in left:
            future.cancel()

    def _prepare(self, command: Command) -> Callable[[], None]:
        """Record a command, and return the action to run outside of the lock."""
        if isinstance(command, Load):
            spec = self.specs[command.model]
            return lambda: _in_background(lambda: self._load(spec), f"load-{spec.name}")
        if isinstance(command, Unload):
            spec, why, figures = self.specs[command.model], command.why, self._figures[command.model]
            figures.evictions += why == "evicted"
            figures.idle_unloads += why == "idle"
            return lambda: _in_background(lambda: self._unload(spec, why), f"unload-{spec.name}")
        ask = command.ask
        future = self._waiting.pop(ask, None)
        if isinstance(command, Grant):
            self._figures[ask.model].hits += command.hit
            return lambda: _set_result(future)
        error = ModelError(f"model {ask.model} is not available: {command.why}")
        return lambda: _set_result(future, error)

    def _load(self, spec: ModelSpec) -> None:
        began = self._clock.monotonic()
        ended_once = threading.Lock()  # Taken by what comes first: the end of the load, or its timeout.
        limit = threading.Timer(spec.load_timeout, self._too_late, [spec, ended_once])
        limit.daemon = True
        limit.start()
        try:
            value = self._call(spec.load)
        except BaseException as error:  # noqa: BLE001 - whatever a load raises is passed to every waiting job
            if ended_once.acquire(blocking=False):
                self._after_failure(spec, error)
            return
        finally:
            limit.cancel()
        if not ended_once.acquire(blocking=False):
            log.warning("model dropped: it was loaded after its timeout", model=spec.name)
            return
        ended = self._clock.monotonic()
        with self._lock:
            figures = self._figures[spec.name]
            figures.loads += 1
            figures.load_seconds += ended - began
            self._values[spec.name] = value
            self.loaded_at = ended
        del value
        log.info("model loaded", model=spec.name, seconds=round(ended - began, 3), memory=format_memory(spec.memory))
        self._decide(self._eviction.loaded, spec.name)

    def _too_late(self, spec: ModelSpec, ended_once: threading.Lock) -> None:
        """Fail a load at its timeout. Its thread cannot be stopped, and is left behind."""
        if ended_once.acquire(blocking=False):
            self._after_failure(spec, TimeoutError(f"it took longer than {format_duration(spec.load_timeout)}"))

    def _after_failure(self, spec: ModelSpec, error: BaseException) -> None:
        why = f"{type(error).__name__}: {words_of(error)}"
        log.error("model could not be loaded", model=spec.name, error=why)
        futures: list[Future[None] | None] = []

        def fail(name: str, now: float) -> list[Command]:
            self._figures[name].failures += 1
            asks, commands = self._eviction.failed(name, now)
            futures.extend(self._waiting.pop(ask, None) for ask in asks)
            return commands

        self._decide(fail, spec.name)
        for future in futures:
            # One exception each, because raising adds a traceback to it.
            each = ModelError(f"model {spec.name} could not be loaded: {why}")
            each.__cause__ = error
            _set_result(future, each)

    def _unload(self, spec: ModelSpec, why: str) -> None:
        value = self._values.pop(spec.name)
        if spec.unload is not None:
            try:
                self._call(spec.unload, value)
            except BaseException as error:  # noqa: BLE001 - the model is removed in any case
                message = f"{type(error).__name__}: {words_of(error)}"
                log.error("model could not be unloaded properly", model=spec.name, error=message)
        del value
        gc.collect()  # free reference cycles before the next load
        log.info("model unloaded", model=spec.name, why=why)
        self._decide(self._eviction.unloaded, spec.name)

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a plain function in the current thread; run an async one on the worker's event loop."""
        value = function(*args)
        if inspect.isawaitable(value) and self._loop is not None:
            return asyncio.run_coroutine_threadsafe(_outcome_of(value), self._loop).result()
        return value

    def _wait_for_moves(self, timeout: float) -> None:
        with self._moved:
            self._moved.wait_for(
                lambda: all(standing.phase == "loaded" for standing in self._eviction.standings.values()), timeout
            )


class ModelUse:
    """One job's use of models."""

    def __init__(self, cache: ModelCache) -> None:
        self.closed = False
        self._cache = cache
        self._asked: dict[str, Future[None]] = {}

    def get(self, name: str, *, look_up: Callable[[], None] | None = None) -> Any:
        """The model, once it is loaded; `look_up` is called periodically during the wait, and may raise.

        On an event loop, which must not be blocked, only for a model that was loaded for this job before.
        """
        future = self._asked.get(name)
        if future is not None and _is_given(future):
            return self._cache.value(name)
        if _on_event_loop():
            raise ConfigError(
                f"model {name} has not been loaded for this job: in an async task, write "
                f"`await current_job().load_model({name!r})`, or declare the task with required_model={name!r}"
            )
        future = self.ask(name)
        while True:
            try:
                future.result(_LOOK_UP)
            except TimeoutError:
                if look_up is not None:
                    look_up()
            else:
                return self._cache.value(name)

    async def load(self, name: str) -> Any:
        """The model, once it is loaded."""
        waiting = asyncio.wrap_future(self.ask(name))
        waiting.add_done_callback(lambda it: it.cancelled() or it.exception())  # may fail after the wait
        await asyncio.shield(waiting)
        return self._cache.value(name)

    def ask(self, name: str) -> Future[None]:
        """A future that is done when the model is loaded; a new request after a failure tries again."""
        future = self._asked.get(name)
        if future is None or (future.done() and not _is_given(future)):
            future = self._asked[name] = self._cache._ask(name, self)
        return future

    def close(self) -> None:
        """Release all models of the ended job."""
        self._asked.clear()
        self._cache._leave(self)


def _is_given(future: Future[None]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _in_background(work: Callable[[], None], name: str) -> None:
    # A daemon thread: a load that hangs must not block the exit of the process.
    threading.Thread(target=work, name=f"tidemill-{name}", daemon=True).start()


async def _outcome_of(value: Any) -> Any:
    return await value


def _set_result(future: Future[None] | None, error: BaseException | None = None) -> None:
    """Resolve a future if it is still awaited; otherwise the model is released when its use is closed."""
    if future is None or not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(None)


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
