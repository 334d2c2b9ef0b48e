"""The blog's page in the console: the site as readers get it, and beside it the states that it is made of."""

from __future__ import annotations

from mimetypes import guess_type
from pathlib import Path

from litestar import Response, get
from litestar.params import FromPath

from tidemill.core.errors import NotFoundError
from tidemill.server.pages import Page


def blog_page(root: Path) -> Page:
    """The page of the blog whose pipelines keep their states under this folder."""

    @get("/site/{path:path}", opt={"role": "viewer"}, sync_to_thread=True)
    def get_site_file(path: FromPath[str]) -> Response[bytes]:
        """A file of the site as it was built last."""
        site = (root / "site").resolve()
        found = (site / path.lstrip("/")).resolve()
        if not found.is_relative_to(site) or not found.is_file():
            raise NotFoundError(f"the site has no {path.lstrip('/')!r} yet: it appears when its states are built")
        kind = guess_type(found.name)[0] or ""
        # A document is shown as text: nothing of the site runs as a page of the console.
        shown = kind if kind.startswith("image/") else "text/plain; charset=utf-8"
        return Response(found.read_bytes(), media_type=shown)

    return Page("blog", "Blog", Path(__file__).parent / "page", handlers=[get_site_file])
