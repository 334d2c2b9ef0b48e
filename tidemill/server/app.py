"""The ASGI application: all routes under `/api/v1`, their document, and the middleware around them.

`/metrics` and `/healthz` answer at the root, too, where Prometheus and load balancers look for them.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

from litestar import Litestar, MediaType, Response, Router, get
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, Reference, SecurityScheme
from litestar.serialization import encode_json

from tidemill.server import pages
from tidemill.server.console import get_console
from tidemill.server.mcp.endpoint import mcp_route
from tidemill.server.middleware.authentication import RoleCheck
from tidemill.server.middleware.encoded_slashes import EncodedSlashes
from tidemill.server.middleware.idempotency import IdempotentRequests
from tidemill.server.middleware.middleware import Middleware
from tidemill.server.openapi import declare_statuses, describe_operations
from tidemill.server.problems import answer
from tidemill.server.routes import ALL, login, metrics, session
from tidemill.server.routes.operations import operation_routes
from tidemill.server.server_state import ServerState
from tidemill.version import VERSION

API = "/api/v1"


def build(server_state: ServerState) -> Middleware:
    """The whole site as an ASGI application."""
    inner = Litestar(
        route_handlers=[
            Router(path=API, route_handlers=[*ALL, *operation_routes(server_state), get_document]),
            metrics.get_metrics,
            session.get_healthz,
            *login.routes,
            *pages.routers(server_state.app.declarations.pages.values()),
            mcp_route(server_state),
            get_console,
        ],
        openapi_config=None,
        **_common(server_state),
    )
    return Middleware(
        EncodedSlashes(inner),
        server_state.authenticator,
        server_state.settings,
        IdempotentRequests(server_state.database),
    )


@get("/schema/openapi.json", opt={"role": "viewer"}, include_in_schema=False)
async def get_document() -> Response[bytes]:
    """The OpenAPI document."""
    return Response(await asyncio.to_thread(write_document), media_type=MediaType.JSON)


@lru_cache(maxsize=1)
def write_document() -> bytes:
    """All routes as an OpenAPI document; written at the first request for it."""
    bearer = SecurityScheme(type="http", scheme="bearer", description="An API token, `tm_...`")
    schemes: dict[str, SecurityScheme | Reference] = {"token": bearer}
    config = OpenAPIConfig(
        title="Tidemill",
        version=VERSION,
        description="Everything that a Tidemill engine knows and can do. Errors are `application/problem+json`.",
        components=Components(security_schemes=schemes),
        security=[{"token": []}],
        use_handler_docstrings=True,
        operation_id_creator=lambda handler, method, path: handler.handler_name,
    )
    described = Litestar(
        [Router(path=API, route_handlers=ALL)],
        openapi_config=config,
        dependencies={"server_state": Provide(_no_server_state, sync_to_thread=False)},
        logging_config=None,
    )
    document: dict[str, Any] = described.openapi_schema.to_schema()
    derived = describe_operations(API)
    document["paths"] = {path: each for path, each in document["paths"].items() if path.startswith(API)}
    for path, methods in derived["paths"].items():
        document["paths"].setdefault(path, {}).update(methods)
    declare_statuses(document["paths"])
    document["components"].setdefault("schemas", {}).update(derived["components"]["schemas"])
    return encode_json(document)


def _no_server_state() -> None:
    """Replaces the state of a server: the application that is described serves nothing."""


def _common(server_state: ServerState) -> dict[str, Any]:
    async def the_server_state() -> ServerState:
        return server_state

    return {
        "dependencies": {"server_state": Provide(the_server_state, use_cache=True)},
        "middleware": [RoleCheck],
        "exception_handlers": {Exception: answer, 500: answer, 404: answer, 405: answer},
        "state": State({"read_only": server_state.settings.read_only}),
        "logging_config": None,
        "request_max_body_size": None,
        "debug": False,
    }
