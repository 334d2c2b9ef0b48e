"""The site: all routes under `/api/v1`, their document, and the gate around them."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, MediaType, Request, Router
from litestar.datastructures import State
from litestar.di import Provide
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, Reference, SecurityScheme

from tidemill.server.access import check_scope
from tidemill.server.desk import Desk
from tidemill.server.gate import Gate
from tidemill.server.idempotency import Repeats
from tidemill.server.problems import answer
from tidemill.server.routes import ALL
from tidemill.version import VERSION

API = "/api/v1"


def build(desk: Desk) -> Gate:
    """The whole site as an ASGI application."""
    return Gate(_inner(desk), desk.doorman, desk.settings, Repeats(desk.database))


def _inner(desk: Desk) -> Litestar:
    async def the_desk() -> Desk:
        return desk

    schemes: dict[str, SecurityScheme | Reference] = {
        "token": SecurityScheme(type="http", scheme="bearer", description="An API token, `tm_...`")
    }
    return Litestar(
        route_handlers=[Router(path=API, route_handlers=ALL)],
        dependencies={"desk": Provide(the_desk, use_cache=True)},
        guards=[check_scope],
        exception_handlers={Exception: _answer, 500: _answer, 404: _answer, 405: _answer},
        openapi_config=OpenAPIConfig(
            title="Tidemill",
            version=VERSION,
            description="Everything that a Tidemill engine knows and can do. Errors are `application/problem+json`.",
            path=f"{API}/schema",
            render_plugins=[JsonRenderPlugin(path="/openapi.json", media_type=MediaType.JSON)],
            components=Components(security_schemes=schemes),
            security=[{"token": []}],
            use_handler_docstrings=True,
        ),
        state=State({"read_only": desk.settings.read_only}),
        logging_config=None,
        request_max_body_size=None,
        debug=False,
    )


def _answer(request: Request[Any, Any, Any], error: Exception) -> Any:
    return answer(request, error)
