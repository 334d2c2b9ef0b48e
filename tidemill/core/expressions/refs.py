"""Refs: expressions in plain data that are replaced by values from a context when they are resolved.

    {"$from": "extract.rows"}                             the value at this path
    {"$from": "extract.rows", "$default": 0}              ... or this default, if the path does not exist
    {"$value": {"$from": "not a ref"}}                    a literal, which is not resolved
    {"$eq": [{"$from": "approve.answer"}, "no"]}          true or false; `$ne` is the opposite
    {"$filter": {"in": {"$from": "list.files"}, "where": {"$ne": [{"$from": "item.size"}, 0]}}}
    {"$template": "for {{$.run.day}}"}                    a text with placeholders

All other data stays unchanged. An object with a key that begins with `$` is always a ref: an unknown operator is an
error that names its place. An application can add operators, each a function of one value:

    refs = Refs({"$upper": str.upper})
    refs.resolve({"name": {"$upper": {"$from": "run.name"}}}, {"run": {"name": "ann"}})     {"name": "ANN"}

or replace the whole language with its own `RefResolver`.
"""

from __future__ import annotations

import difflib
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import msgspec

from tidemill.core.expressions.paths import ABSENT, Path, RefError, look_up, parse_path
from tidemill.core.expressions.template import Template

Operator = Callable[[Any], Any]

ITEM = "item"


class RefSource(msgspec.Struct, frozen=True):
    """A path that an expression reads, and its place in the expression."""

    path: Path
    place: Path


class RefResolver(Protocol):
    """The interface by which an application can replace the ref language."""

    def resolve(self, expression: Any, context: Mapping[str, Any], place: Path = ()) -> Any:
        """Return the expression with all refs replaced by values from the context; a `RefError` names the place."""
        ...

    def sources(self, expression: Any, place: Path = ()) -> Iterator[RefSource]:
        """Yield all paths that the expression reads; a malformed ref raises a `RefError`."""
        ...


class Refs:
    """The ref language described above, with the application's additional operators."""

    def __init__(self, operators: Mapping[str, Operator] | None = None, *, strict: bool = True) -> None:
        """If not `strict`, unknown operators are accepted, because another resolver may know them."""
        self._operators: dict[str, Operator] = dict(operators or {})
        self._strict = strict
        for name in self._operators:
            if not name.startswith("$") or name in _FORMS:
                raise RefError(
                    (), f"{name!r} is not a valid operator name: it must begin with $ and must not be a built-in one"
                )

    def resolve(self, expression: Any, context: Mapping[str, Any], place: Path = ()) -> Any:
        """Return the expression with all refs replaced by values from the context."""
        if isinstance(expression, dict):
            form = self._form(expression, place)
            if form is None:
                return {key: self.resolve(part, context, (*place, key)) for key, part in expression.items()}
            if form in _FORMS:
                return _FORMS[form][1](self, expression, context, place)
            return self._operate(form, self.resolve(expression[form], context, (*place, form)), place)
        if isinstance(expression, list | tuple):
            return [self.resolve(part, context, (*place, index)) for index, part in enumerate(expression)]
        return expression

    def sources(self, expression: Any, place: Path = ()) -> Iterator[RefSource]:
        """Yield all paths that the expression reads."""
        if isinstance(expression, dict):
            form = self._form(expression, place)
            if form is None:
                for key, part in expression.items():
                    yield from self.sources(part, (*place, key))
            elif form in _FORMS:
                yield from _FORMS[form][0](self, expression, place)
            else:
                yield from self.sources(expression[form], (*place, form))
        elif isinstance(expression, list | tuple):
            for index, part in enumerate(expression):
                yield from self.sources(part, (*place, index))

    def _form(self, expression: dict[Any, Any], place: Path) -> str | None:
        """Return the operator of an object; None if the object is plain data."""
        found = [key for key in expression if isinstance(key, str) and key.startswith("$")]
        if not found:
            return None
        form = "$from" if "$from" in found else found[0]
        extra = next((str(key) for key in expression if key != form and (form, key) != ("$from", "$default")), None)
        if extra is not None:
            raise RefError(place, f"{form} and {extra!r} are in one object; {form} must be the only key")
        if form not in _FORMS and form not in self._operators and self._strict:
            known = sorted((*_FORMS, *self._operators))
            close = difflib.get_close_matches(form, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known operators: {', '.join(known)}"
            raise RefError(place, f'{form} is not an operator; {hint} (for a literal: {{"$value": ...}})')
        return form

    def _operate(self, form: str, value: Any, place: Path) -> Any:
        try:
            return self._operators[form](value)
        except RefError:
            raise
        except Exception as error:  # the application's function may raise any exception
            raise RefError(place, f"{form} failed: {type(error).__name__}: {error}") from error


# -- built-in operators: the sources and the value of each ----------------------------------------


def _value_sources(refs: Refs, expression: dict[str, Any], place: Path) -> Iterator[RefSource]:
    return iter(())


def _value(refs: Refs, expression: dict[str, Any], context: Mapping[str, Any], place: Path) -> Any:
    return expression["$value"]


def _from_sources(refs: Refs, expression: dict[str, Any], place: Path) -> Iterator[RefSource]:
    yield RefSource(parse_path(expression["$from"], (*place, "$from")), (*place, "$from"))


def _from(refs: Refs, expression: dict[str, Any], context: Mapping[str, Any], place: Path) -> Any:
    path = parse_path(expression["$from"], (*place, "$from"))
    if "$default" not in expression:
        return look_up(path, context, place)
    try:
        if context[str(path[0])] is ABSENT:
            return expression["$default"]
        return look_up(path, context, place)
    except (RefError, KeyError):
        return expression["$default"]


def _pair_sources(refs: Refs, expression: dict[str, Any], place: Path) -> Iterator[RefSource]:
    form, pair = _pair(expression, place)
    return refs.sources(pair, (*place, form))


def _pair(expression: dict[str, Any], place: Path) -> tuple[str, list[Any]]:
    ((form, pair),) = expression.items()
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise RefError((*place, form), f"{form} compares two values: write [one, other]")
    return form, list(pair)


def _equal(refs: Refs, expression: dict[str, Any], context: Mapping[str, Any], place: Path) -> bool:
    form, pair = _pair(expression, place)
    one, other = refs.resolve(pair, context, (*place, form))
    return same(one, other) is (form == "$eq")


def _filter_parts(expression: dict[str, Any], place: Path) -> tuple[Any, Any, Path]:
    within = (*place, "$filter")
    parts = expression["$filter"]
    if not isinstance(parts, dict) or set(parts) != {"in", "where"}:
        raise RefError(within, '$filter needs a list and a condition: write {"in": ..., "where": ...}')
    return parts["in"], parts["where"], within


def _filter_sources(refs: Refs, expression: dict[str, Any], place: Path) -> Iterator[RefSource]:
    items, where, within = _filter_parts(expression, place)
    yield from refs.sources(items, (*within, "in"))
    yield from (source for source in refs.sources(where, (*within, "where")) if source.path[0] != ITEM)


def _filter(refs: Refs, expression: dict[str, Any], context: Mapping[str, Any], place: Path) -> list[Any]:
    items, where, within = _filter_parts(expression, place)
    found = refs.resolve(items, context, (*within, "in"))
    if found is None:
        return []
    if not isinstance(found, list | tuple):
        raise RefError((*within, "in"), "$filter needs a list, and this is not one")
    kept: list[Any] = []
    for item in found:
        held = refs.resolve(where, ChainMap({ITEM: item}, context), (*within, "where"))  # pyright: ignore[reportArgumentType]
        if not isinstance(held, bool):
            raise RefError((*within, "where"), f"the condition must be true or false, but is {held!r}")
        if held:
            kept.append(item)
    return kept


def _template_of(expression: dict[str, Any], place: Path) -> Template:
    text = expression["$template"]
    if not isinstance(text, str):
        raise RefError((*place, "$template"), f"{text!r} is not a string")
    return Template(text, (*place, "$template"))


def _template_sources(refs: Refs, expression: dict[str, Any], place: Path) -> Iterator[RefSource]:
    for path in _template_of(expression, place).sources:
        yield RefSource(path, (*place, "$template"))


def _template(refs: Refs, expression: dict[str, Any], context: Mapping[str, Any], place: Path) -> str:
    return _template_of(expression, place).render(context)


_FORMS: dict[str, tuple[Callable[..., Iterator[RefSource]], Callable[..., Any]]] = {
    "$value": (_value_sources, _value),
    "$from": (_from_sources, _from),
    "$eq": (_pair_sources, _equal),
    "$ne": (_pair_sources, _equal),
    "$filter": (_filter_sources, _filter),
    "$template": (_template_sources, _template),
}


def same(one: Any, other: Any) -> bool:
    """Return whether two plain values are equal as JSON: 1 and 1.0 are equal, 1 and true are not."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def ref(path: str | list[str | int], **given: Any) -> dict[str, Any]:
    """Make a ref to a path: `ref("$.run.day")`, or `ref("$.run.day", default="today")` if it may be missing."""
    parse_path(path)
    if unknown := set(given) - {"default"}:
        raise RefError((), f"ref() takes a path and default=, not {', '.join(sorted(unknown))}")
    written: dict[str, Any] = {"$from": path}
    return {**written, "$default": given["default"]} if given else written
