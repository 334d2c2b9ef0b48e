"""The argument of a task: the message, its value, the results of earlier tasks, and its outbox."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, overload

import msgspec
from typing_extensions import Unpack

from tidemill.core.codec import encode, storable
from tidemill.core.errors import ConfigError
from tidemill.core.jobs.job import Origin
from tidemill.engine.containment.blocked_time import TimeLimit
from tidemill.engine.jobs.calls import job_of_call, read_call
from tidemill.engine.jobs.enqueue_options import EnqueueOptions
from tidemill.engine.jobs.origin import origin_here
from tidemill.engine.jobs.task import Call, P, Task
from tidemill.engine.telemetry.tracing import carrying, current_trace
from tidemill.sinks import LogSink, Sink
from tidemill.sources.base import ORIGIN_HEADER
from tidemill.streams.definition.message import OutboxItem
from tidemill.streams.runner.outbox import StateWriter

MOST_LINES = 50

#: Statements that would end the transaction in which outcomes are stored, change its settings or its session's, or wait
#: for data that do not come.
_CONTROL = re.compile(
    r"(?>[\s;]+|--[^\n]*|/\*.*?\*/)*+"
    r"(BEGIN|START|COMMIT|END|ROLLBACK|ABORT|SAVEPOINT|RELEASE|PREPARE|SET|RESET|DISCARD|DEALLOCATE|COPY)\b",
    re.IGNORECASE | re.DOTALL,
)

#: Encodes an event with a token that identifies it, for the inbox of a run.
EventTick = Callable[[Any, str], bytes]


class Message(msgspec.Struct, eq=False):
    """One message, shared by its plans."""

    stream: str
    source: str
    value: Any
    live: bool = False
    part: int | str = 0
    position: int = 0
    id: str | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] | None = None
    at: float = 0.0
    deadline: float | None = None
    attempt: int = 1
    ends_at: float | None = None
    """When its plans are ended, in seconds since 1970."""
    eligibilities: set[str] | None = None
    """What plans have made of its eligibilities; None if none has looked at them."""
    shared: dict[str, Any] | None = None

    @property
    def place(self) -> str:
        """Which message of its source it is, for people."""
        return f"{self.part}:{self.position}"


class OutboxTargets(msgspec.Struct, frozen=True):
    """What the plans of a stream can hand results to."""

    event_tick: EventTick | None = None
    states: StateWriter | None = None
    sinks: Mapping[str, Sink] = {}


class Context(msgspec.Struct, eq=False):
    """A message in one plan."""

    message: Message
    value: Any
    _plan: str
    _eligible: Collection[str] = ()
    _targets: OutboxTargets = OutboxTargets()
    results: dict[str, Any] = {}
    """The results of the tasks of this plan so far, by name."""
    outbox: list[OutboxItem] = []
    give_up: Callable[[str], None] | None = None
    """Is called when a task does not end at its timeout."""
    limits: tuple[TimeLimit, ...] = ()
    _lines: list[bytes] | None = None

    @property
    def log_fields(self) -> dict[str, str]:
        """What every line that its tasks log carries."""
        return {
            "stream": self.message.stream,
            "source": self.message.source,
            "message": self.message.place,
            "plan": self._plan,
        }

    @property
    def work(self) -> str:
        """The message, in words."""
        message = self.message
        return f"message {message.stream}/{message.source}:{message.place}"

    def keep_line(self, line: bytes) -> None:
        """Keep a line that a task has logged; of many, the last ones."""
        self._lines = [*(self._lines or ()), line][-MOST_LINES:]

    def lines_json(self) -> bytes:
        """The lines as a JSON array, or nothing."""
        return b"[" + b",".join(self._lines) + b"]" if self._lines else b""

    @property
    def eligibilities(self) -> set[str]:
        """The eligibilities of this message, which its plans share and may change.

        A plan whose eligibility is added runs after those that run now; one that is removed does not begin any more.
        """
        if self.message.eligibilities is None:
            self.message.eligibilities = set(self._eligible)
        return self.message.eligibilities

    @property
    def shared(self) -> dict[str, Any]:
        """Values that the plans of this message share."""
        if self.message.shared is None:
            self.message.shared = {}
        return self.message.shared

    @overload
    def enqueue(self, call: Call[Any], /, **options: Unpack[EnqueueOptions]) -> None: ...

    @overload
    def enqueue(self, task: Task[P, Any, Any], /, *args: P.args, **kwargs: P.kwargs) -> None: ...

    def enqueue(self, what: Any, /, *positional: Any, **more: Any) -> None:
        """Enqueue a job when this message succeeds, exactly once even if the message is delivered again.

        The options are those of `app.enqueue`, except `conn`.
        """
        call, options = read_call(what, positional, more)
        job = job_of_call(call.task, call.arguments, options, origin=self._origin())
        job = carrying(job, current_trace())
        self.outbox.append(OutboxItem("job", encode(job), job.task, None if job.keyed else self._key()))

    def publish(
        self, topic: str, value: Any, *, key: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        """Append to a topic of the PostgreSQL log when this message succeeds."""
        body = value if isinstance(value, bytes) else encode(value)
        given = dict(headers or {})
        if (trace := current_trace()) is not None:
            given.setdefault("traceparent", trace)
        given_or_none = given if given or headers is not None else None
        self.outbox.append(OutboxItem("log", body, topic, key, self.work, given_or_none))

    def emit(self, sink: str, value: Any, *, key: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Send a value to a sink of the stream when this message has succeeded, at least once.

        Values of a key arrive in order; without `key` it is the key of this message.
        """
        declared = self._targets.sinks.get(sink)
        if declared is None:
            known = ", ".join(self._targets.sinks) or "none"
            raise ConfigError(f"stream {self.message.stream} has no sink {sink!r}; its sinks are {known}")
        if isinstance(declared, LogSink):
            self.publish(declared.topic, value, key=self._key_of_item(key), headers=headers)
            return
        body = value if isinstance(value, bytes) else encode(value)
        given = {str(name): str(each) for name, each in (headers or {}).items()}
        if (trace := current_trace()) is not None:
            given.setdefault("traceparent", trace)
            given.setdefault(ORIGIN_HEADER, self.work)
        self.outbox.append(OutboxItem("sink", body, sink, self._key_of_item(key), self._key(), given or None))

    def _key_of_item(self, key: str | None) -> str | None:
        if key is None and self.message.key is not None:
            return storable(self.message.key.decode(errors="replace"))
        return key

    def execute(self, statement: str, *arguments: Any) -> None:
        """Run a statement in the database when this message succeeds; `$1`, `$2`… are the arguments as JSON text.

        With a source outside of PostgreSQL it may run again after a crash: make it idempotent. The outcomes of other
        messages are in the same transaction: what would end it, or change a setting of it, is refused.
        """
        if (found := _CONTROL.match(statement)) is not None:
            raise ConfigError(
                f"{found[1].upper()} cannot be executed with a message: other messages share the transaction and its "
                "settings; use a task of your own, or a connection of your own"
            )
        self.outbox.append(OutboxItem("sql", encode(list(arguments)), statement))

    def send(self, run: int, event: Any) -> None:
        """Send an event to a durable run of a workflow when this message succeeds."""
        if self._targets.event_tick is None:
            raise ConfigError("events are sent by streams that an application declares: app.stream(...)")
        key = self._key()
        self.outbox.append(OutboxItem("event", self._targets.event_tick(event, key), str(run), key))

    def write_state(self, path: str, content: str | bytes, *, pipeline: str | None = None) -> None:
        """Write an input state of a pipeline when this message succeeds; what depends on it is rebuilt.

        A repeated message writes the same content again, which rebuilds nothing: derive the path from the message. With
        `DatabaseStates` and a source whose position is in PostgreSQL it is written exactly once.
        """
        if self._targets.states is None:
            raise ConfigError("states are written by streams that an application declares: app.stream(...)")
        body = content.encode() if isinstance(content, str) else content
        name, trace = self._targets.states.check(pipeline, path), current_trace()
        headers = None if trace is None else {"traceparent": trace}
        self.outbox.append(OutboxItem("state", body, name, path, self.work, headers))

    def _key(self) -> str:
        """A key that is the same for the same item of the same message."""
        message = self.message
        return f"{message.stream}/{message.source}/{message.place}/{self._plan}/{len(self.outbox)}"

    def _origin(self) -> Origin:
        return origin_here(self.work)


class BatchLines:
    """Keeps the lines that a call with several messages logs, for each of them."""

    def __init__(self, contexts: Sequence[Context]) -> None:
        self._contexts = contexts

    @property
    def log_fields(self) -> dict[str, str]:
        """The fields that the messages share."""
        first = self._contexts[0].log_fields
        return {name: first[name] for name in ("stream", "plan")}

    def keep_line(self, line: bytes) -> None:
        for ctx in self._contexts:
            ctx.keep_line(line)
