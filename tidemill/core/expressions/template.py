"""Templates: texts with placeholders, such as `Load {{$.extract.rows}} rows for {{$.run.day}}?`

    template = Template("Load {{$.extract.rows}} rows?")
    template.sources                                    (("extract", "rows"),)
    template.render({"extract": {"rows": 3}})           "Load 3 rows?"

Strings are inserted unchanged, null as an empty string, and other values as JSON. `{{{{` is an escaped `{{`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tidemill.core.codec import encode
from tidemill.core.expressions.paths import Path, RefError, look_up, parse_path

_PLACEHOLDER = re.compile(r"\{\{\{\{|\{\{(.*?)(\}\}|$)", re.DOTALL)


class Template:
    """A template that is parsed once and rendered many times."""

    def __init__(self, text: str, place: Path = ()) -> None:
        self.text = text
        self._place = place
        self._parts: list[str | Path] = []
        at = 0
        for placeholder in _PLACEHOLDER.finditer(text):
            self._parts.append(text[at : placeholder.start()])
            self._parts.append("{{" if placeholder[1] is None else self._path(placeholder))
            at = placeholder.end()
        self._parts.append(text[at:])
        self.sources: tuple[Path, ...] = tuple(part for part in self._parts if isinstance(part, tuple))

    def render(self, context: Mapping[str, Any]) -> str:
        """Return the text with all placeholders replaced by values from the context."""
        return "".join(
            part if isinstance(part, str) else _shown(look_up(part, context, self._place)) for part in self._parts
        )

    def _path(self, placeholder: re.Match[str]) -> Path:
        inside = placeholder[1].strip()
        if not placeholder[2]:
            raise RefError(
                self._place, f"{placeholder[0]!r} is not closed; write {{{{$.node.field}}}}, or {{{{{{{{ for two braces"
            )
        if not inside.startswith("$."):
            raise RefError(self._place, f"{placeholder[0]!r} does not begin with '$.'; write {{{{$.node.field}}}}")
        return parse_path(inside, self._place)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else encode(value).decode()
