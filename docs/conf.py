"""How `make docs` builds the site: the guides as they are, and a reference that is generated from the code."""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS))

from generate_reference import write_reference  # noqa: E402 - found by the line above

from tidemill.version import VERSION  # noqa: E402

project, author, release = "Tidemill", "The Tidemill authors", VERSION
extensions = ["myst_parser"]
html_theme, html_title = "furo", f"Tidemill {VERSION}"
exclude_patterns = ["_build"]
myst_heading_anchors = 4
nitpicky = True
html_copy_source = False


def link_outside(app, docname, source):
    """Name files that are not part of the site instead of linking to them."""
    source[0] = re.sub(r"\[([^\]]+)\]\((\.\./[^)]*)\)", lambda found: _shown(found[1], found[2]), source[0])


def _shown(text: str, target: str) -> str:
    path = target.removeprefix("../").rstrip("/")
    return f"{text} (`{path}`)" if path not in text else text


def setup(app):
    write_reference(DOCS / "reference")
    app.connect("source-read", link_outside)
