"""`/mcp`: the tools over streamable HTTP, by the protocol's own SDK.

Every request stands alone: the server keeps no session, so any server behind a load balancer can answer it. The caller
is the one that the middleware has found, with the role and the name in the audit log that it has everywhere.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from litestar import asgi
from litestar.handlers import ASGIRouteHandler

from tidemill.core.accounts import Caller
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import TidemillError
from tidemill.ops.operator.validation import read_arguments
from tidemill.server.mcp.tools import Tool, offered_tools
from tidemill.server.middleware.authentication import CALLER, require_role
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState
from tidemill.version import VERSION

if TYPE_CHECKING:
    from mcp.server import Server

PATH = "/mcp"

INSTRUCTIONS = (
    "Tidemill runs jobs, durable runs of flows and dags, streams, pipelines and monitors. Start with get_overview; "
    "explain says why a job, run, alert or message is in its state and what to do; it takes r12 for a run, a7 for an "
    "alert, d3 for a dead letter and plain numbers for jobs. All other tools take plain numbers."
)


def mcp_route(server_state: ServerState) -> ASGIRouteHandler:
    """The route of the protocol. The SDK is imported at the first request: it takes a while, and many never use it."""

    @asgi(PATH, opt={"role": "viewer"}, copy_scope=False)
    async def handle(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] != "POST":  # No stream of the server's own, and no session to end.
            raise Refused(405, "send messages of the protocol with POST", Allow="POST")
        try:
            from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
        except ImportError as error:
            raise Refused(501, "this server has no MCP: install `tidemill[mcp]` and restart it") from error
        manager = StreamableHTTPSessionManager(
            _server(server_state),
            stateless=True,
            json_response=True,
            max_request_body_size=server_state.settings.most_body,
        )
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    return handle


@lru_cache(maxsize=4)
def _server(server_state: ServerState) -> Server[Any]:
    """The protocol's server, with our two answers: which tools there are, and what a call of one returns."""
    import mcp_types as types
    from mcp.server import Server

    logging.getLogger("mcp").setLevel(logging.WARNING)

    async def list_tools(context: Any, _: object) -> types.ListToolsResult:
        caller: Caller = context.request.scope[CALLER]
        shown = [tool for tool in offered_tools().values() if _may(caller, tool, server_state)]
        return types.ListToolsResult(tools=[_described(tool, types) for tool in shown])

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        caller: Caller = context.request.scope[CALLER]
        try:
            text = await _call(server_state, caller, params.name, params.arguments or {})
        except TidemillError as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        value = msgspec.json.decode(text) if text else {}
        structured = value if isinstance(value, dict) else {"result": value}
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=structured)

    return Server(
        "tidemill",
        title=f"Tidemill: {server_state.app.name}",
        version=VERSION,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _call(server_state: ServerState, caller: Caller, name: str, arguments: dict[str, Any]) -> str:
    """Do the operation of a tool for a caller; returns its result as JSON."""
    tool = offered_tools().get(name)
    if tool is None:
        hint = did_you_mean(name, offered_tools()) or ": ask for the list of tools"
        raise TidemillError(f"there is no tool {name!r}{hint}")
    operation = tool.operation
    require_role(caller, operation.role, read_only=server_state.settings.read_only)
    args = read_arguments(operation.args, arguments)
    body = await server_state.local(caller).answer(operation, args)
    server_state.after(operation)
    return body.decode()


def _may(caller: Caller, tool: Tool, server_state: ServerState) -> bool:
    changes = tool.operation.role != "viewer"
    return caller.may(tool.operation.role) and not (changes and server_state.settings.read_only)


def _described(tool: Tool, types: Any) -> Any:
    operation = tool.operation
    hints = types.ToolAnnotations(
        read_only_hint=not operation.acts,
        destructive_hint=operation.name.startswith("cancel"),
        open_world_hint=False,
    )
    return types.Tool(
        name=operation.name,
        title=operation.summary,
        description=operation.description,
        input_schema=tool.schema,
        annotations=hints,
    )
