"""Streams: what the dispatchers that run tell of themselves, weights and limits while they run, and live requests."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, JSONBody

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.server.live.live_requests import LONGEST, ask_stream
from tidemill.server.server_state import TheServerState, caller_of
from tidemill.store.streams.streams import COUNT_KEPT, read_status, set_control


class Stream(msgspec.Struct, frozen=True):
    """A stream: the dispatchers that run it now, each with its sources and plans, and what is kept of it."""

    name: str
    dispatchers: list[dict[str, Any]]
    retries: int
    """Messages that wait for another attempt."""
    dead: int


class Streams(msgspec.Struct, frozen=True):
    items: list[Stream]


class StreamWish(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is wanted of a stream, or of one of its sources; what is not said stays as it is. A `max_qps` of 0 is no
    limit."""

    source: str = ""
    mode: Literal["run", "drain"] | None = None
    weight: float | None = None
    max_qps: float | None = None
    enabled: bool | None = None


class LiveAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to run plans on now: which, by the eligibilities that they are for, and the message itself."""

    eligibilities: list[str]
    payload: Any
    timeout: float = 30.0


class LiveAnswer(msgspec.Struct, frozen=True):
    """What the plans found, by plan and task; and the plans that failed, with their errors."""

    result: Any
    failures: dict[str, str]


@get("/streams", opt={"scope": "read"}, summary="List streams")
async def get_streams(server_state: TheServerState) -> Streams:
    """The streams that are declared or run, with rate, lag and weight of each source."""
    rows = await read_status(server_state.database)
    names = sorted({*server_state.app.streams.declared, *(row["stream"] for row in rows)})
    kept = {row["stream"]: row for row in await server_state.database.fetch(COUNT_KEPT, names)}
    found = [
        Stream(
            name,
            [
                {"host": row["host"], "pid": row["pid"], "silent": row["silent"], **decode(row["status"])}
                for row in rows
                if row["stream"] == name
            ],
            kept[name]["retries"],
            kept[name]["dead"],
        )
        for name in names
    ]
    return Streams(found)


@post("/streams/{name:str}/control", opt={"scope": "operate"}, status_code=200, summary="Change a running stream")
async def control(
    server_state: TheServerState, request: Request[Any, Any, Any], name: FromPath[str], data: JSONBody[StreamWish]
) -> StreamWish:
    """Drain or resume a stream; weigh, limit, switch off or on one of its sources. Dispatchers obey at once."""
    declared = server_state.app.streams.declared.get(name)
    running = [
        source for row in await read_status(server_state.database, name) for source in decode(row["status"])["sources"]
    ]
    known = {source["name"] for source in running} | {each.name for each in (declared.sources if declared else ())}
    if not known:
        raise NotFoundError(f"there is no stream {name!r}")
    if data.source and data.source not in known:
        raise NotFoundError(f"stream {name!r} has no source {data.source!r}; it has {', '.join(sorted(known))}")
    if data.weight is not None and not 0 < data.weight < 1e9:
        raise ConfigError(
            f"a weight of {data.weight:g} would never let a message through: switch the source off instead"
        )
    if data.max_qps is not None and not 0 <= data.max_qps < 1e9:
        raise ConfigError(
            f"a limit of {data.max_qps:g} messages a second makes no sense: switch the source off instead"
        )
    if not data.source and (data.weight, data.max_qps, data.enabled) != (None, None, None):
        raise ConfigError("say of which source")
    await set_control(
        server_state.database,
        name,
        data.source,
        mode=data.mode,
        weight=data.weight,
        max_qps=data.max_qps,
        enabled=data.enabled,
        by=caller_of(request).name,
    )
    return data


@post("/streams/{name:str}/live", opt={"scope": "operate"}, status_code=200, summary="Ask a stream live")
async def ask_live(server_state: TheServerState, name: FromPath[str], data: JSONBody[LiveAsk]) -> LiveAnswer:
    """Run a stream's plans on a message now, ahead of its backlog; a dispatcher that takes live requests answers."""
    if not 0 < data.timeout <= LONGEST:
        raise ConfigError(f"a timeout of {data.timeout:g} s will not do: it is above 0 and at most {LONGEST:g}")
    found = await ask_stream(
        server_state, name, data.eligibilities, msgspec.json.encode(data.payload), timeout=data.timeout
    )
    return LiveAnswer(decode(found.result), found.failures)


routes = [get_streams, control, ask_live]
