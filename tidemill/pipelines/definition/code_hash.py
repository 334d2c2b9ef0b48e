"""Code hashes: what a stage's result depends on besides its inputs.

    hash = hash_code(summary, params={"model": "small"})
    hash.total     "1f0c..."    differs if and only if something that the function reaches has changed
    hash.parts     {"blog.summary": "...", "blog.PROMPT": "...", "texts.clean": "...", "numpy": "2.1.0"}

Followed from the function: the functions, classes and constants of the project that it names, as `name` or as
`module.name`, through closures, defaults, decorators, base classes and methods. Constants count by their value,
external packages by their version. Comments, docstrings and formatting do not count.
"""

from __future__ import annotations

import ast
import builtins
import copy
import enum
import functools
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from datetime import date, datetime, time, timedelta
from pathlib import PurePath
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import msgspec

from tidemill.pipelines.definition.source_text import Definition, ModuleSources, dump

#: Directories of code that does not belong to the project.
_ELSEWHERE = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PLAIN = (str, bytes, int, float, complex, bool, type(None), date, datetime, time, timedelta, PurePath)
_CODE = (FunctionType, BuiltinFunctionType, MethodType, ModuleType, type, functools.partial)
_NOT_PROJECT = frozenset({"tidemill", *sys.stdlib_module_names})
_LONGEST = 400  # parts; more means that data was followed instead of code

SOURCES = ModuleSources()


class CodeHash(msgspec.Struct, frozen=True):
    """The hash of a stage's code, and of each of its parts."""

    total: str
    parts: dict[str, str]


def hash_code(function: Any, *, params: Mapping[str, Any] | None = None, version: str | None = None) -> CodeHash:
    """The code hash of a function. A declared `version` replaces the code; `params` count either way."""
    parts: dict[str, str] = {}
    if version is not None:
        parts["version"] = version
    else:
        _Walk(parts).follow(_name_of(function), function)
    for name, value in (params or {}).items():
        parts[f"params.{name}"] = short_hash(_value(value) or repr(value))
    return CodeHash(short_hash("\n".join(f"{name}={parts[name]}" for name in sorted(parts))), parts)


def remember_sources() -> None:
    """Read the sources of the project's modules now, while they match the imported code."""
    SOURCES.remember(module for module in list(sys.modules.values()) if _is_text_of_project(module))


def _is_text_of_project(module: ModuleType) -> bool:
    name = getattr(module, "__name__", "")
    return (
        name.partition(".")[0] not in _NOT_PROJECT and bool(getattr(module, "__file__", None)) and _is_project(module)
    )


def changed_parts(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """The names of parts that were added, removed or changed."""
    return tuple(sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)))


def short_hash(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class _Walk:
    """A walk from a function over everything that it reaches."""

    def __init__(self, parts: dict[str, str]) -> None:
        self._parts = parts
        self._met: set[int] = set()
        self._kept: list[Any] = []  # keeps objects alive, so that ids are not reused

    def follow(self, name: str, value: Any) -> None:
        """Add a value under this name."""
        if len(self._parts) >= _LONGEST:
            return
        text = _value(value)
        if text is not None:
            self._parts[name] = short_hash(text)
            return
        if id(value) in self._met or _is_ours(value) or isinstance(value, type(os.environ)):
            return
        self._met.add(id(value))
        self._kept.append(value)
        if isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self.follow(name, value.__func__)
            self.follow(f"{name}.self", value.__self__)
        elif isinstance(value, type):
            self._class(value)
        elif isinstance(value, functools.partial):
            self.follow(f"{name}.func", value.func)
            self._each(name, {**{str(at): each for at, each in enumerate(value.args)}, **value.keywords})
        elif isinstance(value, Mapping):
            self._each(name, {str(key): each for key, each in value.items()})
        elif isinstance(value, list | tuple | set | frozenset):
            self._each(name, {str(at): each for at, each in enumerate(value)})
        elif isinstance(value, BuiltinFunctionType):
            self._parts[name] = value.__qualname__
        else:
            self._instance(name, value)

    def _each(self, name: str, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self.follow(f"{name}.{key}", value)

    def _module(self, module: ModuleType) -> None:
        """Add a whole module: it was passed as a value, so anything in it may be used."""
        if not _is_project(module):
            self._package(module.__name__)
            return
        source = SOURCES.of(module)
        self._parts[module.__name__] = short_hash(dump(source.tree)) if source else "no source"

    def _package(self, module: str) -> None:
        top = module.partition(".")[0]
        version = _version(top)
        if version is not None:
            self._parts[top] = version

    def _function(self, function: FunctionType) -> None:
        module = sys.modules.get(function.__module__ or "")
        if module is not None and not _is_project(module):
            self._package(module.__name__)
            self._closure(_name_of(function), function)  # an external decorator may wrap a project function
            return
        name = _name_of(function)
        definition = None if module is None else SOURCES.definition(module, function.__code__)
        if definition is None:
            self._parts[name] = short_hash(_bytecode(function.__code__))
            for reached in _names_in_code(function.__code__):
                self._named(reached, function.__globals__)
        else:
            definition = _undeclared(definition, function.__globals__)
            self._parts[name] = short_hash(dump(definition))
            self._names(definition, function.__globals__)
        self._closure(name, function)
        self._each(f"{name} default", {str(at): each for at, each in enumerate(function.__defaults__ or ())})
        self._each(f"{name} default", function.__kwdefaults__ or {})
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.follow(_name_of(wrapped), wrapped)

    def _closure(self, name: str, function: FunctionType) -> None:
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue  # not set yet
            self.follow(_name_of(value, f"{name} closure {variable}"), value)

    def _class(self, kind: type) -> None:
        module = sys.modules.get(kind.__module__)
        if module is None or not _is_project(module):
            self._package(kind.__module__)
            return
        name = _name_of(kind)
        definition = SOURCES.class_definition(module, kind)
        if definition is not None:
            self._parts[name] = short_hash(dump(definition))
            self._names(definition, vars(module))
        for method in vars(kind).values():
            inner = getattr(method, "__func__", method)
            if isinstance(inner, FunctionType) and inner.__module__ == kind.__module__:
                if definition is None:
                    self._function(inner)
                else:
                    self._met.add(id(inner))
                    self._closure(name, inner)
        for base in kind.__bases__:
            self.follow(_name_of(base), base)

    def _instance(self, name: str, value: Any) -> None:
        """Add an object: its class, and its public attributes that are plain values."""
        self.follow(_name_of(type(value)), type(value))
        fields = getattr(value, "__struct_fields__", None)
        held = {field: getattr(value, field) for field in fields} if fields else getattr(value, "__dict__", {})
        for attribute, inner in held.items():
            if not str(attribute).startswith("_") and (text := _value(inner)) is not None:
                self._parts[f"{name}.{attribute}"] = short_hash(text)
            elif isinstance(inner, FunctionType):
                self.follow(_name_of(inner), inner)

    def _names(self, node: ast.AST, scope: Mapping[str, Any]) -> None:
        """Follow all outside names that a definition reads: `name`, and `module.name`."""
        own = _bound_names(node)
        for chain in _chains(node):
            if chain[0] not in own:
                self._named(chain, scope)

    def _named(self, chain: tuple[str, ...], scope: Mapping[str, Any]) -> None:
        if chain[0] not in scope:
            return  # a builtin, or not defined yet
        owner, value, name = None, scope[chain[0]], chain[0]
        for attribute in chain[1:]:
            if not isinstance(value, ModuleType) or not hasattr(value, attribute):
                break
            owner, value, name = value, getattr(value, attribute), attribute
        if owner is not None and not _is_project(owner) and not isinstance(value, _CODE):
            self._package(owner.__name__)  # Such as sys.argv: it is no code of the project, and may differ each time.
            return
        if value is getattr(builtins, name, self):
            return
        fallback = f"{_module_name(str(scope.get('__name__', '')))}.{'.'.join(chain)}"
        self.follow(_name_of(value, fallback), value)


def _undeclared(node: Definition, scope: Mapping[str, Any]) -> Definition:
    """A definition without the decorators that only declare it to Tidemill, which do not change its result."""
    decorators = getattr(node, "decorator_list", None)
    if not decorators:
        return node
    kept = [each for each in decorators if not _declares(each, scope)]
    if len(kept) == len(decorators):
        return node
    made = copy.copy(node)
    made.decorator_list = kept  # pyright: ignore[reportAttributeAccessIssue]
    return made


def _declares(decorator: ast.expr, scope: Mapping[str, Any]) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    if not isinstance(called, ast.Attribute):
        return False
    root = called.value
    known = scope.get(root.id) if isinstance(root, ast.Name) else None
    return called.attr == "stage" if known is None else _is_ours(known)


def _chains(node: ast.AST) -> set[tuple[str, ...]]:
    """The dotted names that code reads: `a.b.c` counts once."""
    found: set[tuple[str, ...]] = set()

    def visit(at: ast.AST) -> None:
        chain: list[str] = []
        inner = at
        while isinstance(inner, ast.Attribute):
            chain.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and (chain or at is inner):
            found.add((inner.id, *reversed(chain)))
            return
        for child in ast.iter_child_nodes(at):
            visit(child)

    visit(node)
    return found


def _bound_names(node: ast.AST) -> set[str]:
    """Names local to the function: its parameters, and what it assigns without `global`."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return set()
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    bound = {each.arg for each in every if each is not None}
    declared: set[str] = set()
    todo: list[ast.AST] = list(node.body) if isinstance(node.body, list) else [node.body]
    while todo:
        each = todo.pop()
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            bound.add(each.id)
        elif isinstance(each, ast.Global):
            declared.update(each.names)
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue  # another scope
        todo.extend(ast.iter_child_nodes(each))
    return bound - declared


def _names_in_code(code: CodeType) -> set[tuple[str, ...]]:
    found = {(name,) for name in code.co_names}
    for const in code.co_consts:
        if inspect.iscode(const):
            found |= _names_in_code(const)
    return found


def _bytecode(code: CodeType) -> str:
    """Code without a reliable source: hash its bytecode."""
    consts = [_bytecode(each) if inspect.iscode(each) else repr(each) for each in code.co_consts]
    return f"{sys.version_info[:2]} {code.co_code!r} {code.co_names} {consts}"


def _value(value: Any) -> str | None:
    """A constant as text; None for anything else."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}={_value(value.value)}"
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, re.Pattern):
        return f"re:{value.pattern!r}:{value.flags}"
    if isinstance(value, list | tuple):
        return _joined(type(value).__name__, [_value(each) for each in value])
    if isinstance(value, set | frozenset):
        inner = [_value(each) for each in value]
        return None if None in inner else _joined("set", sorted(each for each in inner if each is not None))
    if isinstance(value, dict):
        pairs = [(_value(key), _value(each)) for key, each in value.items()]
        return _joined("dict", [None if key is None or each is None else f"{key}={each}" for key, each in pairs])
    return None


def _joined(kind: str, parts: list[Any]) -> str | None:
    return None if None in parts else f"{kind}({','.join(parts)})"


def _name_of(value: Any, fallback: str = "code") -> str:
    qualname = getattr(value, "__qualname__", None)
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(qualname, str) and isinstance(getattr(value, "__module__", None), str):
        return f"{_module_name(value.__module__)}.{qualname}"
    return fallback


def _module_name(name: str) -> str:
    """A module's name; a file that is run as a program has the same name as when imported."""
    if name != "__main__":
        return name
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    return spec.name if spec is not None else PurePath(getattr(main, "__file__", None) or "__main__").stem


def _is_ours(value: Any) -> bool:
    """Whether this is a part of Tidemill, which does not change a stage's result."""
    module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    kind = type(value).__module__
    return str(module).partition(".")[0] == "tidemill" or (
        kind.partition(".")[0] == "tidemill" and not hasattr(value, "__struct_fields__")
    )


def _is_project(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    if not file:
        return module.__name__ == "__main__"
    return not str(file).startswith(_ELSEWHERE) and not any(part in str(file) for part in _INSTALLED)


@functools.cache
def _version(top: str) -> str | None:
    """The version of a package; None for the standard library."""
    if top in sys.stdlib_module_names:
        return None
    found = getattr(sys.modules.get(top), "__version__", None)
    if isinstance(found, str):
        return found
    from importlib import metadata  # rarely needed, and slow to load

    try:
        return metadata.version(top)
    except metadata.PackageNotFoundError:
        return None
