"""The README's own program, put together from its pieces, is one that works."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill import App

ROOT = Path(__file__).resolve().parents[2]


def test_the_pieces_of_the_readme_are_one_application() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if " = await " not in line or line[0] == " "]
    names: dict[str, object] = {"__name__": "readme", "__file__": str(ROOT / "README.md")}
    exec(compile("\n".join(lines), "README.md", "exec"), names)
    app = names["app"]
    assert isinstance(app, App)
    assert {"send_receipt", "refresh_prices"} <= {*app.tasks}
    assert [*app.runs.flows] == ["Article"]
    assert [*app.streams.declared] == ["comments"]
    assert [*app.pipelines.declared] == ["blog"]
    assert [*app.monitors] == ["machines"]


def test_every_guide_that_is_linked_exists() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "apps").glob("*/README.md")]
    missing = [
        f"{page.name}: {link}"
        for page in pages
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []
