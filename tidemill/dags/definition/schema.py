"""JSON Schema: what an answer to an input node must look like.

A schema stands on its own: a `$ref` to another file or address is refused, so that checking an answer never reads
anything from anywhere.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from tidemill.core.paths import format_path

MOST_PROBLEMS = 5


class SchemaProblem(Exception):
    """A schema that is none; a sentence says why."""


class Schema:
    """A schema that was read once and checks many values."""

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(schema, retriever=_refuse)
        except jsonschema_rs.ValidationError as error:
            where = format_path(tuple(error.instance_path))
            raise SchemaProblem(f"at {where}: {error.message}" if where else error.message) from error
        except (ValueError, TypeError) as error:
            raise SchemaProblem(str(error).strip().splitlines()[0]) from error

    def problem(self, value: Any) -> str | None:
        """What is wrong with a value, in a sentence; None if nothing is."""
        told: list[str] = []
        for error in self._validator.iter_errors(value):
            where = format_path(tuple(error.instance_path))
            told.append(f"{where}: {error.message}" if where else error.message)
            if len(told) > MOST_PROBLEMS:
                told[-1] = "and more"
                break
        return "; ".join(told) or None


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is outside of the schema; write what it refers to under $defs")
