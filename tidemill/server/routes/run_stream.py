"""What a run publishes, live: a stream of server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import Stream

from tidemill.core.accounts import Caller
from tidemill.core.codec import SECRET, decode, encode, mask_secrets
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.ops.runs.runs import find_run
from tidemill.server.live.hub import LONGEST
from tidemill.server.server_state import ServerState, TheServerState, caller_of
from tidemill.store.runs.describe import describe_published
from tidemill.store.runs.runs import LIVE_RUN_STATES
from tidemill.store.transaction import Reader

SHOWN_AT_ONCE = 500
QUIET = 15.0


@get(
    "/runs/{run_id:int}/stream",
    opt={"role": "viewer"},
    summary="What a run shows, live",
    media_type="text/event-stream",
)
async def stream(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    run_id: FromPath[int],
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=30)] = None,
    after: Annotated[int, QueryParameter(ge=0, le=2**62)] = 0,
) -> Stream:
    """Server-sent events: everything that the run has published and will publish, until it has ended (`event: end`).

    The stream ends after some minutes: reconnect with `Last-Event-ID`, as browsers do by themselves.
    """
    caller = caller_of(request)
    server_state.hub.check_room(caller)
    await find_run(Reader(server_state.database, caller.name), run_id)
    if last_event_id is not None and (not last_event_id.isascii() or not last_event_id.isdigit()):
        raise ConfigError(f"{last_event_id!r} is not the id of an event of this stream")
    since = after if last_event_id is None else min(int(last_event_id), 2**62)
    return Stream(_follow(server_state, caller, run_id, since), media_type="text/event-stream")


routes = [stream]


def _shown(data: Any) -> bytes:
    text = encode(mask_secrets(decode(data))) if SECRET.encode() in data else bytes(data)
    return text.replace(b"\n", b" ")


async def _follow(server_state: ServerState, caller: Caller, run_id: int, after: int) -> AsyncIterator[bytes]:
    hub = server_state.hub
    until = asyncio.get_running_loop().time() + LONGEST
    database = await server_state.local(caller).readable()
    with hub.subscribing(caller) as subscriber:
        while not (hub.closed or subscriber.ended) and asyncio.get_running_loop().time() < until:
            place = hub.place
            try:
                row = await find_run(Reader(database, caller.name), run_id)
            except NotFoundError:
                return
            shown = await describe_published(database, run_id, after=after, limit=SHOWN_AT_ONCE)
            for each in shown:
                after = each["number"]
                yield f"id: {after}\nevent: shown\ndata: ".encode() + _shown(each["data"]) + b"\n\n"
            if len(shown) == SHOWN_AT_ONCE:
                continue
            if row["state"] not in LIVE_RUN_STATES and not shown:
                yield (
                    b"event: end\ndata: " + msgspec.json.encode({"state": row["state"], "note": row["note"]}) + b"\n\n"
                )
                return
            if not shown:
                await hub.changed(subscriber, run_id, place, timeout=QUIET if hub.is_live else 1.0)
                yield b": \n\n"
