"""Expressions of workflow files: a subset of JavaScript with paths, calls and operators.

    evaluate("$.rd.content.toUpperCase()", {"rd": {"content": "tides"}})         "TIDES"
    fill("{{$.dates.id}}-digest.md", {"dates": {"id": "2026-01-15"}})            "2026-01-15-digest.md"
    fill("{{$.items.length}}", {"items": [1, 2]})                                2: an expression alone keeps its type

There are no assignments, no loops and no access to Python, because the text may come from an untrusted source. What
cannot be parsed or evaluated is an `ExpressionError`; it never stays in a text silently.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tidemill.pipelines.workflows.expression_methods import (
    GLOBALS,
    LIST_METHODS,
    NUMBER_METHODS,
    TEXT_METHODS,
    ExpressionError,
    bounded,
    counted,
    is_true,
    kind_of,
    shown,
    small,
    to_number,
    writable,
)

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<name>[A-Za-z_$][\w$]*)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<op>=>|===|!==|==|!=|<=|>=|&&|\|\||\?\?|\?\.|[-+*/%<>!?:.,()\[\]{}]))""",
    re.VERBOSE,
)
_HOLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_BINARY = {
    "||": 1, "??": 1, "&&": 2, "==": 3, "===": 3, "!=": 3, "!==": 3, "<": 4, "<=": 4, ">": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
LONGEST = 4000

Scope = Mapping[str, Any]
Code = Callable[[Scope], Any]


def evaluate(text: str, context: Mapping[str, Any], **names: Any) -> Any:
    """The value of an expression; `$` is the context."""
    code = compile_expression(text)
    try:
        with counted():
            return writable(code({"$": context, **GLOBALS, **names}))
    except ExpressionError as error:
        raise ExpressionError(f"{text.strip()!r}: {error}") from error
    except MemoryError:
        raise ExpressionError(f"{text.strip()!r} needs more memory than there is") from None
    except (TypeError, ValueError, ArithmeticError, RecursionError, LookupError, AttributeError) as error:
        raise ExpressionError(f"{text.strip()!r} cannot be evaluated: {error}") from error


def fill(value: Any, context: Mapping[str, Any], **names: Any) -> Any:
    """A text with its `{{ }}` filled in, also inside lists and objects. An expression alone keeps its type."""
    if isinstance(value, str):
        alone = _HOLE.fullmatch(value.strip())
        if alone is not None and "{{" not in alone[1]:
            return evaluate(alone[1], context, **names)
        return _filled(value, context, names)
    if isinstance(value, list):
        return [fill(each, context, **names) for each in value]
    if isinstance(value, Mapping):
        return {key: fill(each, context, **names) for key, each in value.items()}
    return value


def _filled(text: str, context: Mapping[str, Any], names: Mapping[str, Any]) -> str:
    size = len(text)

    def put(hole: re.Match[str]) -> str:
        nonlocal size
        value = shown(evaluate(hole[1], context, **names))
        size = bounded(size + len(value))
        return value

    return _HOLE.sub(put, text)


def compile_expression(text: str) -> Code:
    """Compile an expression."""
    if not text.strip() or len(text) > LONGEST:
        raise ExpressionError(f"an expression is a text of 1 to {LONGEST} characters")
    reader = _Reader(text)
    code = reader.expression(0)
    if reader.token[0] != "end":
        raise ExpressionError(f"{text.strip()!r}: {reader.token[1]!r} is not expected")
    return code


def expressions_in(value: Any) -> Iterator[str]:
    """The expressions in the `{{ }}` of a text, and of all texts in lists and objects."""
    if isinstance(value, str):
        yield from _HOLE.findall(value)
    elif isinstance(value, list):
        for each in value:
            yield from expressions_in(each)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from expressions_in(each)


def roots_of(text: str) -> set[str]:
    """The names that an expression reads from the context: `a` and `b` of `$.a.x + $.b`."""
    tokens = _Reader(text).tokens
    return {
        tokens[at + 2][1]
        for at in range(len(tokens) - 2)
        if tokens[at] == ("name", "$") and tokens[at + 1] == ("op", ".") and tokens[at + 2][0] == "name"
    }


class _Reader:
    """Parses an expression into a function."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str]] = []
        at = 0
        rest = text.rstrip()
        while at < len(rest):
            found = _TOKEN.match(rest, at)
            if found is None:
                raise ExpressionError(f"{text.strip()!r}: {rest[at:].strip()[:10]!r} is not understood")
            self.tokens.append((str(found.lastgroup), found[str(found.lastgroup)]))
            at = found.end()
        self.at = 0

    @property
    def token(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "the end")

    def take(self, op: str | None = None) -> str:
        kind, text = self.token
        if op is not None and (kind, text) != ("op", op):
            raise ExpressionError(f"{self.text.strip()!r}: {op!r} is expected, and {text!r} is there")
        self.at += 1
        return text

    def expression(self, power: int) -> Code:
        left = self.unary()
        while self.token[0] == "op":
            op = self.token[1]
            if op == "?" and power == 0:
                left = self._choice(left)
                continue
            strength = _BINARY.get(op, 0)
            if strength <= power:
                break
            self.take()
            left = _binary(op, left, self.expression(strength))
        return left

    def _choice(self, test: Code) -> Code:
        self.take("?")
        yes = self.expression(0)
        self.take(":")
        no = self.expression(0)
        return lambda scope: yes(scope) if is_true(test(scope)) else no(scope)

    def unary(self) -> Code:
        kind, text = self.token
        if kind == "op" and text in ("!", "-", "+"):
            self.take()
            inner = self.unary()
            if text == "!":
                return lambda scope: not is_true(inner(scope))
            sign = -1 if text == "-" else 1
            return lambda scope: sign * to_number(inner(scope))
        return self.postfix(self.primary())

    def postfix(self, code: Code) -> Code:
        while self.token[0] == "op" and self.token[1] in (".", "?.", "[", "("):
            op = self.take()
            if op == "[":
                key = self.expression(0)
                self.take("]")
                code = _index(code, key)
            elif op == "(":
                code = _call(code, self.arguments())
            else:
                kind, name = self.token
                if kind != "name":
                    raise ExpressionError(f"{self.text.strip()!r}: a name is expected after {op!r}")
                self.take()
                if self.token == ("op", "("):
                    self.take()
                    code = _method(code, name, self.arguments(), optional=op == "?.")
                else:
                    code = _field(code, name, optional=op == "?.")
        return code

    def arguments(self) -> list[Code]:
        found: list[Code] = []
        while self.token != ("op", ")"):
            found.append(self.argument())
            if self.token == ("op", ","):
                self.take()
        self.take(")")
        return found

    def argument(self) -> Code:
        """An expression, or a small function: `x => x.id`, `(a, b) => a + b`."""
        start, names = self.at, []
        if self.token[0] == "name":
            names = [self.take()]
        elif self.token == ("op", "("):
            self.take()
            while self.token[0] == "name":
                names.append(self.take())
                if self.token == ("op", ","):
                    self.take()
            if self.token == ("op", ")"):
                self.take()
        if names and self.token == ("op", "=>"):
            self.take()
            body = self.expression(0)
            return lambda scope: lambda *given: body({**scope, **dict(zip(names, given, strict=False))})
        self.at = start
        return self.expression(0)

    def primary(self) -> Code:
        kind, text = self.token
        self.at += 1
        if kind == "number":
            number = float(text) if "." in text else int(text)
            return lambda _: number
        if kind == "text":
            written = json.loads(text) if text[0] == '"' else _unquoted(text)
            return lambda _: written
        if kind == "name":
            return _name(text)
        if (kind, text) == ("op", "("):
            inner = self.expression(0)
            self.take(")")
            return inner
        if (kind, text) == ("op", "["):
            items: list[Code] = []
            while self.token != ("op", "]"):
                items.append(self.expression(0))
                if self.token == ("op", ","):
                    self.take()
            self.take("]")
            return lambda scope: [item(scope) for item in items]
        if (kind, text) == ("op", "{"):
            return self._object()
        raise ExpressionError(f"{self.text.strip()!r}: {text!r} is not expected")

    def _object(self) -> Code:
        pairs: list[tuple[str, Code]] = []
        while self.token != ("op", "}"):
            kind, key = self.token
            if kind not in ("name", "text"):
                raise ExpressionError(f"{self.text.strip()!r}: a field's name is expected, and {key!r} is there")
            self.take()
            self.take(":")
            pairs.append((key if kind == "name" else _unquoted(key), self.expression(0)))
            if self.token == ("op", ","):
                self.take()
        self.take("}")
        return lambda scope: {key: value(scope) for key, value in pairs}


def _name(name: str) -> Code:
    if name in ("true", "false", "null", "undefined"):
        value = {"true": True, "false": False}.get(name)
        return lambda _: value

    def lookup(scope: Scope) -> Any:
        if name not in scope:
            raise ExpressionError(f"there is no {name!r} here; paths begin with $.")
        return scope[name]

    return lookup


def _field(code: Code, name: str, *, optional: bool) -> Code:
    def lookup(scope: Scope) -> Any:
        value = code(scope)
        if value is None and optional:
            return None
        if name == "length" and isinstance(value, str | list):
            return len(value)
        if isinstance(value, Mapping):
            if name in value:
                return value[name]
            if optional:
                return None
            known = ", ".join(sorted(map(str, value))[:8]) or "none"
            raise ExpressionError(f"there is no field {name!r}; the fields are {known}")
        raise ExpressionError(f"{kind_of(value)} has no field {name!r}")

    return lookup


def _index(code: Code, key: Code) -> Code:
    def lookup(scope: Scope) -> Any:
        value, at = code(scope), key(scope)
        if isinstance(value, Mapping):
            if at not in value:
                raise ExpressionError(f"there is no field {at!r}")
            return value[at]
        if isinstance(value, list | str) and isinstance(at, int | float) and 0 <= at < len(value):
            return value[int(at)]
        raise ExpressionError(f"{kind_of(value)} has no place {at!r}")

    return lookup


def _call(code: Code, arguments: list[Code]) -> Code:
    def call(scope: Scope) -> Any:
        function = code(scope)
        if not callable(function):
            raise ExpressionError(f"{kind_of(function)} cannot be called")
        return function(*(argument(scope) for argument in arguments))

    return call


def _method(code: Code, name: str, arguments: list[Code], *, optional: bool) -> Code:
    def call(scope: Scope) -> Any:
        value = code(scope)
        if value is None and optional:
            return None
        given = [argument(scope) for argument in arguments]
        if isinstance(value, Mapping) and callable(value.get(name)):
            return value[name](*given)
        methods = (
            TEXT_METHODS if isinstance(value, str) else LIST_METHODS if isinstance(value, list) else NUMBER_METHODS
        )
        if isinstance(value, Mapping) or name not in methods or (value is None):
            raise ExpressionError(f"{kind_of(value)} has no method {name!r}")
        return methods[name](value, *given)

    return call


def _binary(op: str, left: Code, right: Code) -> Code:
    if op == "&&":
        return lambda scope: right(scope) if is_true(value := left(scope)) else value
    if op == "||":
        return lambda scope: value if is_true(value := left(scope)) else right(scope)
    if op == "??":
        return lambda scope: value if (value := left(scope)) is not None else right(scope)

    def work(scope: Scope) -> Any:
        a, b = left(scope), right(scope)
        if op in ("==", "==="):
            return a == b
        if op in ("!=", "!=="):
            return a != b
        if op == "+":
            if isinstance(a, str) or isinstance(b, str):
                one, other = shown(a), shown(b)
                bounded(len(one) + len(other))
                return one + other
            return small(to_number(a) + to_number(b))
        if op in ("<", "<=", ">", ">="):
            if not (isinstance(a, str) and isinstance(b, str)):
                a, b = to_number(a), to_number(b)
            return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
        a, b = to_number(a), to_number(b)
        if op == "/":
            result = a / b
            return int(result) if result == int(result) else result
        return small(a - b if op == "-" else a * b) if op in "-*" else math.fmod(a, b)

    return work


def _unquoted(text: str) -> str:
    inner = text[1:-1].replace('"', '\\"') if text[0] == "'" else text[1:-1]
    return json.loads(f'"{inner}"'.replace("\\'", "'"))
