"""What an application declares about a model: how to load it, how much memory it takes, how long to keep it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.duration import Duration, parse_duration
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.jobs.job import check_name
from tidemill.core.limits.memory_size import Memory, format_memory, parse_memory


class ModelError(TidemillError):
    """A model is not available: its load failed, or it can never fit in memory."""


class ModelSpec:
    """A model that tasks may use.

    name           what tasks call it
    load           returns the model; a plain function runs in a thread, an async one on the worker's event loop
    unload         is called with the model when it is evicted; without it the model is only dereferenced
    memory         how much memory it uses while loaded: bytes, or text such as "2 GB"
    pinned         loaded when a worker starts, and never evicted
    idle           unloaded after not being used for this long
    gpu            it uses a GPU: workers that serve its jobs run one at a time by default
    load_timeout   a load that takes longer has failed, and what it returns later is dropped
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], Any],
        unload: Callable[[Any], Any] | None = None,
        memory: Memory = 0,
        *,
        pinned: bool = False,
        idle: Duration | None = None,
        gpu: bool = False,
        load_timeout: Duration = "1h",
    ) -> None:
        self.name = check_name("model", name)
        if not callable(load):
            raise ConfigError(f"model {name}: load={load!r} is not a function that returns the model")
        if unload is not None and not callable(unload):
            raise ConfigError(f"model {name}: unload={unload!r} is not a function that takes the model")
        self.load = load
        self.unload = unload
        self.memory = parse_memory(memory, what=f"memory of model {name}")
        self.pinned = pinned
        self.idle = None if idle is None else parse_duration(idle, what=f"idle time of model {name}")
        self.gpu = gpu
        self.load_timeout = parse_duration(load_timeout, what=f"load_timeout of model {name}")

    def __repr__(self) -> str:
        return f"<model {self.name}, {format_memory(self.memory)}>"


def read_specs(specs: Iterable[ModelSpec]) -> dict[str, ModelSpec]:
    """Models by name; duplicate names are an error."""
    known: dict[str, ModelSpec] = {}
    for spec in specs:
        if not isinstance(spec, ModelSpec):
            raise ConfigError(f"{spec!r} is not a model: declare it with ModelSpec(name, load, unload, memory)")
        if spec.name in known:
            raise ConfigError(f"two models are called {spec.name!r}: rename one of them")
        known[spec.name] = spec
    return known


def check_budget(specs: Iterable[ModelSpec], budget: int | None) -> None:
    """Check that each model fits in the budget beside the pinned ones."""
    if budget is None:
        return
    specs = list(specs)
    pinned = [spec for spec in specs if spec.pinned]
    for spec in sorted(specs, key=lambda spec: spec.pinned):
        others = [each for each in pinned if each is not spec]
        if spec.memory + sum(each.memory for each in others) > budget:
            beside = f" beside the pinned {', '.join(each.name for each in others)}" if others else ""
            raise ConfigError(
                f"model {spec.name} needs {format_memory(spec.memory)}, which the models' budget of "
                f"{format_memory(budget)} does not hold{beside}: raise model_memory"
            )


def require_model(name: str | None, known: Mapping[str, ModelSpec], *, where: str = "") -> None:
    """Raise an error that lists the declared models, unless this is one of them or None."""
    if name is not None and name not in known:
        declared = f"{', '.join(sorted(known)) or 'none'}{did_you_mean(name, known)}"
        raise ConfigError(f"{where}there is no model {name!r}; this application declares: {declared}")


def gpu_max_concurrency(models: Mapping[str, ModelSpec], required: Iterable[str | None]) -> int | None:
    """The default number of concurrent jobs of a worker: one, if any of these models uses a GPU."""
    return 1 if any(name is not None and name in models and models[name].gpu for name in required) else None
