"""Pages of the application's own: their files, their handlers, and a list of them for the console.

A page needs the same log-in as the API: its files need the role `viewer`, and a browser without a session is sent to
the console's log-in. What it shows comes from its handlers, each with a role, as every route has:
`opt={"role": "viewer"}`, or `"operator"`, `"editor"` or `"admin"` for a handler that changes something. A handler that
needs the database declares `server_state: TheServerState`; `server_state.note` writes an audit entry.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

import msgspec
from litestar import Request, Response, Router, get
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.core.web.page import Page
from tidemill.server.console import ASK_AGAIN, file_of, kind_of
from tidemill.server.middleware.authentication import CALLER, OPEN, require_role
from tidemill.server.server_state import TheServerState

__all__ = ["Page", "PageLine", "routers", "routes"]


class PageLine(msgspec.Struct, frozen=True):
    name: str
    title: str
    address: str


@get("/pages", opt={"role": "viewer"}, summary="The application's own pages")
async def list_pages(server_state: TheServerState) -> list[PageLine]:
    """Where the application's own pages are."""
    return [
        PageLine(page.name, page.title, f"/pages/{page.name}/") for page in server_state.app.declarations.pages.values()
    ]


routes = [list_pages]


def routers(pages: Iterable[Page]) -> list[Any]:
    """What the site needs to show these pages."""
    made: list[Any] = []
    for page in pages:
        made.append(Router(path=f"/pages/{page.name}/api", route_handlers=page.handlers))
        made.append(Router(path=f"/pages/{page.name}", route_handlers=[_files(page)]))
    return made


def _files(page: Page) -> HTTPRouteHandler:
    @get(["/", "/{path:path}"], opt={"role": OPEN}, include_in_schema=False, sync_to_thread=False)
    def get_file(request: Request[Any, Any, Any], path: FromPath[str] = "") -> Response[bytes]:
        """A file of the page."""
        caller: Caller | None = request.scope.get(CALLER)
        if caller is None and "text/html" in request.headers.get("accept", ""):
            return Response(b"", status_code=303, headers={"location": f"/?next={quote(request.url.path)}"})
        require_role(caller, "viewer", read_only=False)
        found = file_of(path.strip("/") or "index.html", page.folder)
        if found is None:
            raise NotFoundError(f"the page {page.name} has no such file")
        return Response(found.read_bytes(), media_type=kind_of(found), headers={"cache-control": ASK_AGAIN})

    return get_file
