"""The console: files that the package build has made, and its one page for every address that is a screen.

The page loads nothing from elsewhere and contains no data: everything that it shows comes from the API.
"""

from __future__ import annotations

import mimetypes
from pathlib import Path, PurePosixPath

from litestar import Response, get
from litestar.params import FromPath

from tidemill.core.errors import NotFoundError
from tidemill.server.middleware.authentication import OPEN

FOLDER = Path(__file__).parent / "static"

#: Files under assets/ carry a hash in their name, and so never change.
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"

MISSING = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tidemill</title></head>
<body><h1>Tidemill</h1>
<p>The API answers under <a href="/api/v1/schema/openapi.json">/api/v1</a>. The console has not been built in this
checkout: <code>make web</code> builds it.</p></body></html>
"""


@get(["/", "/{path:path}"], opt={"role": OPEN}, include_in_schema=False, sync_to_thread=False)
def get_console(path: FromPath[str] = "") -> Response[bytes]:
    """A file of the console, or its page: which screen that is, the page reads from the address."""
    name = path.strip("/")
    if name.partition("/")[0] in ("api", "metrics", "healthz"):
        raise NotFoundError("there is nothing at this address")
    found = file_of(name)
    if found is None and PurePosixPath(name).suffix in (".js", ".css", ".svg", ".map", ".ico"):
        raise NotFoundError("there is no such file: the console may have been rebuilt, load the page again")
    if found is not None:
        kept = FOR_EVER if name.startswith("assets/") else ASK_AGAIN
        return Response(found.read_bytes(), media_type=kind_of(found), headers={"cache-control": kept})
    page = FOLDER / "index.html"
    body = page.read_bytes() if page.is_file() else MISSING.encode()
    return Response(body, media_type="text/html", headers={"cache-control": ASK_AGAIN})


def file_of(name: str, folder: Path = FOLDER) -> Path | None:
    """A file in a folder by its name; never one outside of it."""
    if not name or not name.isprintable():
        return None
    try:
        found = (folder / name).resolve()
        return found if found.is_relative_to(folder.resolve()) and found.is_file() else None
    except OSError:  # A name that no file can have.
        return None


def kind_of(file: Path) -> str:
    """The media type of a file."""
    return mimetypes.guess_type(file.name)[0] or "application/octet-stream"
