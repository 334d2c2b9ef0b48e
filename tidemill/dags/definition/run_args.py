"""The arguments of a dag's runs: what `Dag(args=...)` declares, and the check of what a run is started with."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.expressions.refs import RefResolver, Refs
from tidemill.dags.definition.check import reads
from tidemill.dags.definition.model import RUN, Dag
from tidemill.dags.definition.schema import Schema, SchemaProblem


def schema_of_args(declared: Any, name: str) -> dict[str, Any]:
    """The JSON Schema of the arguments that a dag declares, by a type or as a schema."""
    if isinstance(declared, Mapping):
        schema: dict[str, Any] = dict(declared)
    else:
        schema = _schema_of_type(declared, name)
        _object_in(schema).setdefault("additionalProperties", False)
    try:
        Schema(schema)
    except SchemaProblem as error:
        raise ConfigError(f"dag {name!r}: args: {error}") from error
    return schema


def args_of_run(given: Any) -> dict[str, Any]:
    """The arguments of a run as plain data, from an object or a mapping."""
    plain = decode(encode(given))
    if not isinstance(plain, dict):
        raise PayloadError(f"a dag is started with an object or a dict of arguments, and not with {given!r:.200}")
    return plain


def check_args(dag: Dag[Any], args: Mapping[str, Any], refs: RefResolver | None = None) -> None:
    """Raise a `PayloadError` for arguments that the dag does not declare, or does not read if it declares none."""
    schema: Any = dag.args
    if schema is None:
        known = None if not args else read_args(dag, refs)
    else:
        declared = _object_in(schema)
        known = set(declared.get("properties", ())) if declared.get("additionalProperties") is False else None
    for name in args:
        if known is not None and name not in known:
            hint = did_you_mean(name, known) or f"; it takes {', '.join(sorted(known)) or 'none'}"
            raise PayloadError(f"dag {dag.name}: there is no argument {name!r}{hint}")
    if schema is not None and (problem := Schema(schema).problem(dict(args))) is not None:
        raise PayloadError(f"dag {dag.name}: bad arguments: {problem}")


def declared_args(dag: Dag[Any]) -> set[str]:
    """The names of the arguments that the dag declares."""
    schema: Any = dag.args
    return set() if schema is None else set(_object_in(schema).get("properties", ()))


def read_args(dag: Dag[Any], refs: RefResolver | None = None) -> set[str] | None:
    """The arguments of the run that the dag reads; None if it reads them all together."""
    resolver = refs or Refs(strict=False)
    names = {node.name: node for node in dag.nodes}
    sources = [source.path for node in dag.nodes for source in reads(node, resolver, names)]
    if dag.result is not None:
        sources += [source.path for source in resolver.sources(dag.result, ("result",))]
    found = [path for path in sources if path[0] == RUN]
    return None if any(len(path) < 2 for path in found) else {str(path[1]) for path in found}


def _schema_of_type(declared: Any, name: str) -> dict[str, Any]:
    pydantic = sys.modules.get("pydantic")
    if pydantic is not None and isinstance(declared, type) and issubclass(declared, pydantic.BaseModel):
        return declared.model_json_schema()
    try:
        schema = msgspec.json.schema(declared)
    except TypeError as error:
        raise ConfigError(f"dag {name!r}: args: {declared!r} has no JSON Schema: {error}") from error
    if _object_in(schema).get("type") != "object":
        raise ConfigError(f"dag {name!r}: args: {declared!r} is not a type with fields, such as a dataclass")
    return schema


def _object_in(schema: dict[str, Any]) -> dict[str, Any]:
    """The part of a schema that describes the object itself, behind its `$ref`."""
    place = str(schema.get("$ref", ""))
    return schema.get("$defs", {}).get(place.removeprefix("#/$defs/"), schema) if place else schema
