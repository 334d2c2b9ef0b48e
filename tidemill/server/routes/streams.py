"""Live requests to streams."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import post
from litestar.params import FromPath, JSONBody

from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError
from tidemill.server.live.live_requests import LONGEST, ask_stream
from tidemill.server.server_state import TheServerState


class LiveAsk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message to run plans on now; `eligibilities` choose the plans."""

    eligibilities: list[str]
    payload: Any
    timeout: float = 30.0


class LiveAnswer(msgspec.Struct, frozen=True):
    """The results by plan and task, and the plans that failed, with their errors."""

    result: Any
    failures: dict[str, str]


@post("/streams/{name:str}/live", opt={"role": "operator"}, status_code=200, summary="Ask a stream live")
async def ask_live(server_state: TheServerState, name: FromPath[str], data: JSONBody[LiveAsk]) -> LiveAnswer:
    """Run a stream's plans on a message now, ahead of its backlog; a dispatcher that takes live requests answers."""
    if not 0 < data.timeout <= LONGEST:
        raise ConfigError(f"a timeout of {data.timeout:g} s is not valid: it must be above 0 and at most {LONGEST:g}")
    found = await ask_stream(
        server_state, name, data.eligibilities, msgspec.json.encode(data.payload), timeout=data.timeout
    )
    return LiveAnswer(decode(found.result), found.failures)


routes = [ask_live]
