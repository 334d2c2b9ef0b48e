"""What users declare: a stream, its sources and the settings of its plans.

posts = Stream("posts", plans=[SpamPlan], max_concurrency=512, max_attempts=3, engines=2,
    sources=[KafkaSource("unified_posts", weight=8, max_qps=500, eligibilities={"spam_comment"})])
app.stream(posts)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from tidemill.core.duration import Duration, parse_duration, parse_rate
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import check_name
from tidemill.core.limits.memory_size import Memory, parse_memory
from tidemill.core.retry import RetryPolicy, retry
from tidemill.core.web.address import is_loopback, read_address
from tidemill.engine.application.lifespan import Lifespan
from tidemill.engine.application.middleware import surrounded
from tidemill.sinks import Sink
from tidemill.sources.base import Source
from tidemill.streams.definition.plans import Plan, TaskRule
from tidemill.streams.engine.context import EventTick
from tidemill.streams.runner.outbox import StateWriter

MOST_LIVE = 64
SHORTEST_SILENCE = 3.0

#: Every stream that this process has declared, by name: an engine finds its stream here.
DECLARED: dict[str, Stream] = {}


class PlanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of a plan that override those of its class."""

    disabled: bool = False
    disabled_for: tuple[str, ...] = ()
    """Sources whose messages skip this plan; `recovery_*` matches all names that begin so."""
    rate: str | float | None = None
    """How many messages it may start per second in each engine, such as "100/s"."""
    max_concurrency: int | None = None
    timeout: str | float | None = None

    def __post_init__(self) -> None:
        if self.rate is not None:
            msgspec.structs.force_setattr(self, "rate", parse_rate(self.rate, what="rate of a plan"))
        if self.timeout is not None:
            msgspec.structs.force_setattr(self, "timeout", parse_duration(self.timeout, what="timeout of a plan"))

    def serves(self, source: str) -> bool:
        return not self.disabled and not any(fnmatchcase(source, pattern) for pattern in self.disabled_for)


class Stream:
    """Runs messages of these sources through these plans, fairly and within limits."""

    def __init__(
        self,
        name: str,
        *,
        sources: Iterable[Source],
        plans: Iterable[type[Plan]],
        sinks: Iterable[Sink] = (),
        engines: int = 1,
        max_concurrency: int = 512,
        prefetch: Memory = "256 MiB",
        max_attempts: int = 3,
        retry: RetryPolicy | None = None,
        max_losses: int = 3,
        silence: Duration = "60s",
        dedup_window: Duration = "10m",
        drain: Duration = "5m",
        gc_every: Duration = "10s",
        threads: int = 8,
        live: int = MOST_LIVE,
        live_qps: float | None = None,
        live_decoder: Any = None,
        grpc: str | None = None,
        http: str | None = None,
        live_open: bool = False,
        live_trust_local: bool = False,
        plan_settings: Mapping[str, PlanSettings | Mapping[str, Any]] | None = None,
    ) -> None:
        """Declare a stream.

        sinks            where plans send results, by `ctx.emit(name, value)`
        engines          processes that run the plans; 0 runs them in the dispatcher, for tests and small programs
        max_concurrency  how many messages may be in flight, over all engines
        prefetch         memory for messages that are read ahead, over all sources
        max_attempts     how often a message is tried; `retry` gives a whole policy
        max_losses       how often engines may die while running a message before it becomes a dead letter
        silence          how long an engine may send nothing, because a task blocks its event loop, before it is killed
        dedup_window     how long the id of a finished message is remembered
        drain            how long stopping may take
        gc_every         how often an engine process collects garbage; its duration is measured
        threads          how many plain functions run at once in an engine
        live             how many live requests may be open; more are rejected
        live_qps         how many live requests a second are taken, over all dispatchers; more are rejected
        grpc, http       addresses for live requests, such as 127.0.0.1:50051; a request needs a token of an operator
        live_open        whether these addresses may be reachable from other machines, without TLS
        live_trust_local whether every process on this machine may ask without a token
        """
        self.name = check_name("stream", name)
        self.sources = tuple(sources)
        self.plans = tuple(plans)
        listed = tuple(sinks)
        self.sinks = {sink.name: sink for sink in listed}
        _unique(f"stream {name}: two sources or sinks are called", [each.name for each in (*self.sources, *listed)])
        self.engines = _at_least(0, engines, f"stream {name}: engines")
        self.max_concurrency = _at_least(1, max_concurrency, f"stream {name}: max_concurrency")
        self.prefetch = parse_memory(prefetch, what=f"stream {name}: prefetch")
        self.max_losses = _at_least(1, max_losses, f"stream {name}: max_losses")
        self.retry = retry or _default_retry(_at_least(1, max_attempts, f"stream {name}: max_attempts"))
        self.silence = parse_duration(silence, what=f"stream {name}: silence")
        if self.silence < SHORTEST_SILENCE:
            raise ConfigError(
                f"stream {name}: silence: engines send a frame every second; allow {SHORTEST_SILENCE:g} s"
            )
        self.dedup_window = parse_duration(dedup_window, what=f"stream {name}: dedup_window")
        self.drain = parse_duration(drain, what=f"stream {name}: drain")
        self.gc_every = parse_duration(gc_every, what=f"stream {name}: gc_every")
        self.threads = _at_least(1, threads, f"stream {name}: threads")
        self.live = _at_least(0, live, f"stream {name}: live")
        self.live_qps = None if live_qps is None else parse_rate(live_qps, what=f"stream {name}: live_qps")
        self.live_decoder = live_decoder
        self.grpc, self.http = grpc, http
        self.live_open, self.live_trust_local = live_open, live_trust_local
        self.plan_settings = {
            plan: given if isinstance(given, PlanSettings) else _settings(name, plan, given)
            for plan, given in (plan_settings or {}).items()
        }
        self.declared_in: str | None = sys._getframe(1).f_globals.get("__file__")
        self.lifespan = Lifespan()
        """That of its application: what engines open before they start."""
        self.event_tick: EventTick | None = None
        self.states: StateWriter | None = None
        self.check()
        DECLARED[self.name] = self

    def __repr__(self) -> str:
        return f"<Stream {self.name}: {len(self.sources)} sources, {len(self.plans)} plans>"

    def check(self) -> None:
        """Raise a `ConfigError` for anything that would fail later."""
        where = f"stream {self.name}"
        for plan in self.plans:
            if not (inspect.isclass(plan) and issubclass(plan, Plan)):
                raise ConfigError(f"{where}: {plan!r} is not a plan: subclass tidemill.streams.Plan")
            if plan.eligibility is None:
                raise ConfigError(
                    f"{where}: plan {plan.name} has no eligibility: class {plan.name}(Plan, eligibility=…)"
                )
            if not plan.tasks:
                raise ConfigError(f"{where}: plan {plan.name} has no task: put @task above a method")
        _unique(f"{where}: two plans are called", [plan.name for plan in self.plans])
        known = {plan.eligibility for plan in self.plans}
        for source in self.sources:
            for eligibility in sorted(source.eligibilities - known):
                raise ConfigError(
                    f"{where}: source {source.name} names eligibility {eligibility!r}, and no plan has it; "
                    f"known are {', '.join(sorted(filter(None, known))) or 'none'}"
                )
        for plan in self.plan_settings:
            if plan not in {each.name for each in self.plans}:
                raise ConfigError(f"{where}: there are settings for plan {plan!r}, and the stream has no such plan")
        for address in filter(None, (self.grpc, self.http)):
            if not self.live_open and not is_loopback(read_address(address, what=f"{where}:")[0]):
                raise ConfigError(
                    f"{where}: other machines can reach {address}, and tokens could be read on the way; "
                    "use 127.0.0.1 and let `tidemill server` forward requests, or set live_open=True"
                )
        if self.live_open and self.live_trust_local:
            raise ConfigError(f"{where}: live_trust_local is for addresses that only this machine can reach")

    def surrounded(self, plan: Plan, rule: TaskRule) -> Callable[..., Any]:
        """The function of a plan's task, within the application's middleware."""
        name = f"{self.name}/{plan.name}.{rule.name}"
        return surrounded(self.lifespan, "stream task", name, getattr(plan, rule.name), _message_id)

    def settings_of(self, plan: type[Plan]) -> PlanSettings:
        return self.plan_settings.get(plan.name) or PlanSettings()


def _message_id(arguments: Mapping[str, Any]) -> str:
    message = getattr(next(iter(arguments.values()), None), "message", None)  # A batched task gets several.
    return "" if message is None else str(message.id or "")


def _default_retry(max_attempts: int) -> RetryPolicy:
    return retry(max_attempts, backoff="500ms", cap="5m")


def _settings(stream: str, plan: str, given: Mapping[str, Any]) -> PlanSettings:
    try:
        return msgspec.convert(given, PlanSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"stream {stream}: the settings of plan {plan} are invalid: {error}") from error


def _at_least(least: int, value: int, what: str) -> int:
    if value < least:
        raise ConfigError(f"{what}: {value} is less than {least}")
    return value


def _unique(complaint: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{complaint} {name!r}: give one of them another name=")
