"""Texts with places to fill in: `Load {{$.extract.rows}} rows for {{$.run.day}}?`

    template = Template("Load {{$.extract.rows}} rows?")
    template.sources                                    (("extract", "rows"),)
    template.render({"extract": {"rows": 3}})           "Load 3 rows?"

Text is put in as it is, null as nothing, and everything else as JSON. `{{{{` stands for two braces.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.core.codec import encode
from tidemill.core.paths import Path, RefError, look_up, parse_path

_HOLE = re.compile(r"\{\{\{\{|\{\{(.*?)(\}\}|$)", re.DOTALL)


class Template:
    """A text that was read once and is filled in often."""

    def __init__(self, text: str, place: Path = ()) -> None:
        self.text = text
        self._place = place
        self._parts: list[str | Path] = []
        at = 0
        for hole in _HOLE.finditer(text):
            self._parts.append(text[at : hole.start()])
            self._parts.append("{{" if hole[1] is None else self._path(hole))
            at = hole.end()
        self._parts.append(text[at:])
        self.sources: tuple[Path, ...] = tuple(part for part in self._parts if isinstance(part, tuple))

    def render(self, context: Mapping[str, Any]) -> str:
        """The text with everything filled in from a context."""
        return "".join(
            part if isinstance(part, str) else _shown(look_up(part, context, self._place)) for part in self._parts
        )

    def _path(self, hole: re.Match[str]) -> Path:
        inside = hole[1].strip()
        if not hole[2]:
            raise RefError(
                self._place, f"{hole[0]!r} is not closed; write {{{{$.node.field}}}}, or {{{{{{{{ for two braces"
            )
        if not inside.startswith("$."):
            raise RefError(self._place, f"{hole[0]!r} does not begin with '$.'; write {{{{$.node.field}}}}")
        return parse_path(inside, self._place)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode(value).decode()
