"""Conditions: expressions in CEL, the Common Expression Language, that are true or false.

    condition = Condition("extract.rows > 0 && run.day != 'sunday'")
    condition.names                                                     {"extract", "run"}
    condition.holds({"extract": {"rows": 3}, "run": {"day": "monday"}})  True

CEL has no endless loops, no side effects and no access to Python, so a condition may come from an untrusted source.
A condition reads names and their fields.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from tidemill.core.expressions.known_valid import found_valid, is_known_valid
from tidemill.core.expressions.paths import ABSENT, Path, RefError

if TYPE_CHECKING:
    from cel_expr_python import cel

LONGEST = 4000

_TEXTS = re.compile(
    r"""[rRbB]{0,2}(?:'''.*?'''|\"\"\".*?\"\"\"|'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")|//[^\n]*""", re.DOTALL
)
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*)(?!\s*\()")
_WORDS = frozenset({"true", "false", "null", "in"})


class Condition:
    """A condition that is compiled once and evaluated many times."""

    def __init__(self, text: str, known: Container[str] | None = None, place: Path = ()) -> None:
        """Compile the condition. If `known` is given, any other name is an error."""
        self.text = text
        self._place = place
        if not text.strip() or len(text) > LONGEST:
            raise RefError(place, f"a condition must be a CEL expression of 1 to {LONGEST} characters")
        found = set(_NAME.findall(_TEXTS.sub("''", text))) - _WORDS
        self.names = frozenset(name for name in found if known is None or name in known)
        if not is_known_valid(text, sorted(self.names)):
            _ = self._program
            found_valid(text, sorted(self.names))

    @cached_property
    def _program(self) -> cel.Expression:
        try:
            return _compiled(self.text, self.names)
        except Exception as error:  # the library raises plain RuntimeErrors
            raise RefError(self._place, f"{self.text!r} is not a valid condition: {_clean_message(error)}") from error

    def value(self, context: Mapping[str, Any]) -> Any:
        """Evaluate the expression and return its value as plain data."""
        from cel_expr_python import cel  # 10 MB, and few processes evaluate conditions

        data = {name: _plain(context[name]) for name in self.names if name in context}
        program = self._program
        try:
            found = program.eval(data=data)
            kind = found.type()
        except Exception as error:
            raise RefError(self._place, f"{self.text!r} cannot be evaluated: {_clean_message(error)}") from error
        if kind == cel.Type.ERROR or kind == cel.Type.UNKNOWN:
            raise RefError(self._place, f"{self.text!r} cannot be evaluated: {_clean_message(found.value())}")
        return found.plain_value()

    def holds(self, context: Mapping[str, Any]) -> bool:
        """Return whether the condition is true."""
        value = self.value(context)
        if not isinstance(value, bool):
            raise RefError(self._place, f"{self.text!r} must be true or false, but is {value!r}")
        return value


# Creating an environment takes far longer than compiling an expression in it, and both are pure, so both are cached.
@lru_cache(maxsize=512)
def _environment(names: frozenset[str]) -> cel.Env:
    from cel_expr_python import cel

    return cel.NewEnv(variables=dict.fromkeys(sorted(names), cel.Type.DYN))


@lru_cache(maxsize=4096)
def _compiled(text: str, names: frozenset[str]) -> cel.Expression:
    return _environment(names).compile(text)


def _plain(value: Any) -> Any:
    return None if value is ABSENT else value


def _clean_message(error: object) -> str:
    """Return the library's message without codes and positions: `Key not found in map : "rows"`."""
    first = str(error).strip().splitlines()[0]
    first = re.sub(r"^[A-Z_]+: (ERROR: )?", "", first)
    first = re.sub(r" expecting \{.*", "", first)
    first = re.sub(r"^<input>:(\d+):(\d+): ", r"at character \2: ", first)
    return re.sub(r" \(in container ''\)| \[[A-Z_]+\]$", "", first)
