"""The live stream: one connection per page, over which it receives what to read again."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from tidemill.server.live.hub import Topics
from tidemill.server.server_state import TheServerState, caller_of


@get("/changes", opt={"role": "viewer"}, summary="What changes, live", media_type="text/event-stream")
async def get_changes(
    server_state: TheServerState,
    request: Request[Any, Any, Any],
    topic: Annotated[
        list[str] | None,
        QueryParameter(
            description="Only these: queue:NAME, run:ID, queues, runs, workers, schedules, inputs, hosts, ..."
        ),
    ] = None,
    last_event_id: Annotated[str | None, HeaderParameter(name="Last-Event-ID", max_length=20_000)] = None,
) -> Stream:
    """Server-sent events. `hello` at the start; `change` names what to read again; `reset` means everything.

    A page that reconnects with `Last-Event-ID` gets what it has missed, also from another server or after a restart.
    """
    caller, topics = caller_of(request), Topics.read(topic or ())
    server_state.hub.check_room(caller)
    return Stream(server_state.hub.watch(caller, topics, last_event_id), media_type="text/event-stream")


routes = [get_changes]
