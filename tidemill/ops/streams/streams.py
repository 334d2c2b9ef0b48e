"""Streams: what dispatchers report, drain and resume, weights and limits of sources, publishing to a topic."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.declarations import Declarations
from tidemill.engine.jobs.origin import origin_text
from tidemill.ops.operator.operation import Arguments, ListOf, doc, operation
from tidemill.store.jobs.pages import Word
from tidemill.store.streams import streams as store
from tidemill.store.streams.event_log import Entry, append
from tidemill.store.streams.limits import LIVE_SOURCE
from tidemill.store.transaction import Reader, Transaction

MOST_MESSAGES = 10_000

StreamName = Annotated[str, doc("The stream.")]


class ListStreams(Arguments, frozen=True, kw_only=True):
    """Which streams."""

    name: Annotated[Word | None, doc("Only this stream.")] = None


class ControlStream(Arguments, frozen=True, kw_only=True):
    """What to change of a stream, or of one of its sources or sinks; what is not given stays as it is."""

    name: StreamName
    source: Annotated[
        str,
        doc("The source of weight, max_qps, burst and enabled, or the sink of enabled; live: live requests."),
    ] = ""
    mode: Annotated[
        Literal["run", "drain"] | None, doc("drain: take no more messages and finish those in flight. run: go on.")
    ] = None
    weight: Annotated[float | None, doc("The source's share against those of the others.")] = None
    max_qps: Annotated[float | None, doc("Messages a second of the source; 0 for no limit.")] = None
    burst: Annotated[float | None, doc("How many messages may pass at once after a quiet time, with max_qps.")] = None
    enabled: Annotated[bool | None, doc("Whether messages of the source are taken, or items of the sink sent.")] = None


class PublishMessages(Arguments, frozen=True, kw_only=True):
    """Messages for a topic of the PostgreSQL log."""

    topic: Annotated[str, doc("The topic.", min_length=1, max_length=400)]
    messages: Annotated[list[str], doc("The messages, as they are.", min_length=1, max_length=MOST_MESSAGES)]
    key: Annotated[str | None, doc("The key of them all.")] = None
    headers: Annotated[dict[str, str] | None, doc("The headers of them all.")] = None


class StreamLine(msgspec.Struct, frozen=True):
    """A stream: the dispatchers that run it now, each with its sources, sinks and plans, and kept messages.

    `retries` wait for another attempt, `dead` are dead letters.
    """

    name: str
    dispatchers: list[dict[str, Any]]
    retries: int
    dead: int


class StreamChanged(msgspec.Struct, frozen=True):
    """What was changed of a stream or of one of its sources."""

    source: str
    mode: str | None
    weight: float | None
    max_qps: float | None
    burst: float | None
    enabled: bool | None


class Published(msgspec.Struct, frozen=True):
    """How many messages were appended to a topic."""

    topic: str
    count: int


@operation("GET /streams", role="viewer")
async def list_streams(at: Reader, args: ListStreams, declared: Declarations | None) -> ListOf[StreamLine]:
    """List the streams that run or are declared, with rate, lag and weight of each source."""
    rows = await store.read_status(at.database, args.name)
    known = {*_declared(declared), *(row["stream"] for row in rows)}
    names = sorted(each for each in known if args.name in (None, each))
    kept = {row["stream"]: row for row in await at.fetch(store.COUNT_KEPT, names)}
    dispatchers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for row in rows:
        dispatcher = {"host": row["host"], "pid": row["pid"], "silent": row["silent"], **decode(row["status"])}
        dispatchers[row["stream"]].append(dispatcher)
    return ListOf([StreamLine(name, dispatchers[name], kept[name]["retries"], kept[name]["dead"]) for name in names])


@operation("POST /streams/{name}/control", role="operator")
async def control_stream(tx: Transaction, args: ControlStream, declared: Declarations | None) -> StreamChanged:
    """Drain or resume a stream that runs or is declared; weigh, limit, disable or enable one of its sources or sinks.

    Dispatchers obey at once, and those that start later obey as well.
    """
    stream = _declared(declared).get(args.name)
    running = [decode(row["status"]) for row in await store.read_status(tx.database, args.name)]
    sources = {each.name for each in stream.sources} if stream is not None else set()
    sources |= {source["name"] for each in running for source in each["sources"]}
    sinks = set(stream.sinks) if stream is not None else set()
    sinks |= {sink["name"] for each in running for sink in each.get("sinks", ())}
    if stream is None and not running:
        known = {*_declared(declared), *(row["stream"] for row in await store.read_status(tx.database))}
        raise NotFoundError(
            f"there is no stream {args.name!r} that runs or is declared: `tidemill stream status` lists them"
            f"{did_you_mean(args.name, known)}"
        )
    _check(args, sources, sinks)
    control = StreamChanged(args.source, args.mode, args.weight, args.max_qps, args.burst, args.enabled)
    wanted = msgspec.structs.asdict(control)
    await store.set_control(tx, args.name, wanted.pop("source"), **wanted)
    return control


@operation("POST /topics/{topic}/messages", role="operator", status=201)
async def publish_messages(tx: Transaction, args: PublishMessages) -> Published:
    """Append messages to a topic of the PostgreSQL log, all or none."""
    headers = None if args.headers is None else encode(args.headers)
    origin = origin_text(tx.by)
    entries = [Entry(args.topic, each.encode(), args.key, headers, origin) for each in args.messages]
    await append(tx.database, tx.connection, entries)
    await tx.audit("stream.publish", args.topic, after={"count": len(entries)})
    return Published(args.topic, len(entries))


def _declared(declared: Declarations | None) -> dict[str, Any]:
    return {} if declared is None else declared.streams.declared


def _check(args: ControlStream, sources: set[str], sinks: set[str]) -> None:
    given = (args.weight, args.max_qps, args.burst, args.enabled)
    if args.source and args.source not in {*sources, *sinks, LIVE_SOURCE}:
        known = ", ".join(sorted(sources))
        hint = did_you_mean(args.source, {*sources, *sinks})
        also = f", its sinks {', '.join(sorted(sinks))}" if sinks else ""
        raise NotFoundError(f"stream {args.name!r} has no source {args.source!r}; its sources are {known}{also}{hint}")
    if args.source in sinks and any(each is not None for each in given[:3]):
        raise ConfigError(f"{args.source} is a sink, which has no weight and no limit: disable or enable it")
    if args.weight is not None and not 0 < args.weight < 1e9:
        raise ConfigError(f"a weight of {args.weight:g} would never let a message through: disable the source instead")
    if args.max_qps is not None and not 0 <= args.max_qps < 1e9:
        raise ConfigError(f"{args.max_qps:g} is not a number of messages a second: disable the source instead")
    if args.burst is not None and not 1 <= args.burst < 1e9:
        raise ConfigError(f"a burst of {args.burst:g} is not at least one message")
    if args.source == LIVE_SOURCE and args.weight is not None:
        raise ConfigError("live requests have no weight: they go ahead of all messages")
    if not args.source and any(each is not None for each in given):
        raise ConfigError("name the source")
    if args.mode is None and all(each is None for each in given):
        raise ConfigError("say what to change: mode, or of a source weight, max_qps, burst or enabled")
