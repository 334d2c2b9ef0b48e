"""The sources of modules as of their first use, and a canonical text of code.

`ModuleSources` reads each file once, when a stage is declared: the text on disk then is what was imported, and may be
newer later. A function's source is only trusted if it compiles to exactly the code that the function has.

The canonical text of code (`dump`) omits comments, formatting and docstrings, and is the same in every version of
Python.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, ModuleType
from typing import NamedTuple
from weakref import WeakKeyDictionary

_LEFT_OUT = frozenset({"ctx", "kind", "type_comment", "lineno", "col_offset", "end_lineno", "end_col_offset"})

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


class ModuleSource(NamedTuple):
    """One module's text, parsed."""

    tree: ast.Module
    definitions: dict[tuple[int, str], Definition]
    codes: dict[tuple[int, str], CodeType]


class ModuleSources:
    """Modules' sources, each as of its first use."""

    def __init__(self) -> None:
        self._texts: WeakKeyDictionary[ModuleType, str | None] = WeakKeyDictionary()
        self._read: WeakKeyDictionary[ModuleType, ModuleSource | None] = WeakKeyDictionary()

    def remember(self, modules: Iterable[ModuleType]) -> None:
        """Read the sources of these modules now, unless they were read before."""
        for module in modules:
            if module not in self._texts:
                self._texts[module] = _text_of(module)

    def of(self, module: ModuleType) -> ModuleSource | None:
        """A module's source; None where there is none."""
        if module not in self._read:
            self.remember([module])
            text = self._texts[module]
            self._read[module] = None if text is None else _parse(text, str(module.__file__))
        return self._read[module]

    def definition(self, module: ModuleType, code: CodeType) -> Definition | None:
        """A function's definition, if the running code matches its file."""
        source = self.of(module)
        if source is None:
            return None
        place = (code.co_firstlineno, code.co_name)
        compiled = source.codes.get(place)
        if compiled is None or not _same_code(compiled, code):
            return None
        return source.definitions.get(place)

    def class_definition(self, module: ModuleType, kind: type) -> ast.ClassDef | None:
        """A class's definition: the last class of its name in its scope."""
        source = self.of(module)
        if source is None:
            return None
        found: ast.AST = source.tree
        for name in kind.__qualname__.replace(".<locals>", "").split("."):
            inner = [node for node in ast.walk(found) if getattr(node, "name", None) == name and node is not found]
            if not inner:
                return None
            found = inner[-1]
        return found if isinstance(found, ast.ClassDef) else None


def _text_of(module: ModuleType) -> str | None:
    file = str(getattr(module, "__file__", None) or "")
    if not file.endswith(".py"):
        return None
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, ValueError):
        return None


def _parse(text: str, file: str) -> ModuleSource | None:
    try:
        tree = ast.parse(text)
        codes = {(code.co_firstlineno, code.co_name): code for code in _inner(compile(text, file, "exec"))}
    except (SyntaxError, ValueError):
        return None
    definitions: dict[tuple[int, str], Definition] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            definitions[first, node.name] = node
        elif isinstance(node, ast.Lambda):
            place = (node.lineno, "<lambda>")
            if place in definitions:  # Two on one line are ambiguous.
                codes.pop(place, None)
            definitions[place] = node
    return ModuleSource(tree, definitions, codes)


def _inner(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if inspect.iscode(const):
            yield const
            yield from _inner(const)


def _same_code(a: CodeType, b: CodeType) -> bool:
    return (
        a.co_code == b.co_code
        and a.co_names == b.co_names
        and len(a.co_consts) == len(b.co_consts)
        and all(
            _same_code(x, y) if inspect.iscode(x) and inspect.iscode(y) else type(x) is type(y) and x == y
            for x, y in zip(a.co_consts, b.co_consts, strict=True)
        )
    )


def dump(node: object) -> str:
    """The canonical text of a piece of code."""
    made: list[str] = []
    _dump(node, made)
    return "".join(made)


def _dump(node: object, made: list[str]) -> None:
    if isinstance(node, ast.AST):
        made.append(f"({type(node).__name__}")
        for name, value in ast.iter_fields(node):
            if name in _LEFT_OUT or value is None or value == []:
                continue
            if name == "body" and isinstance(value, list):
                value = _without_docstring(node, value)
            made.append(f" {name}=")
            _dump(value, made)
        made.append(")")
    elif isinstance(node, list):
        made.append("[")
        for each in node:
            _dump(each, made)
            made.append(",")
        made.append("]")
    else:
        made.append(f"{type(node).__name__}:{node!r}")


def _without_docstring(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) or not body:
        return body
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:] or [ast.Pass()]
    return body
