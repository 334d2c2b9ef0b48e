"""Validate answers to input nodes against their JSON Schema.

A schema must be self-contained: a `$ref` to another file or URL is rejected, so that validation does no I/O.
"""

from __future__ import annotations

from typing import Any

import jsonschema_rs

from tidemill.core.expressions.paths import format_path

MOST_PROBLEMS = 5


class SchemaProblem(Exception):
    """The schema is invalid; the message says why."""


class Schema:
    """A schema that is parsed once and validates many values."""

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        try:
            self._validator = jsonschema_rs.validator_for(schema, retriever=_refuse)
        except jsonschema_rs.ValidationError as error:
            where = format_path(tuple(error.instance_path))
            raise SchemaProblem(f"at {where}: {error.message}" if where else error.message) from error
        except (ValueError, TypeError) as error:
            raise SchemaProblem(str(error).strip().splitlines()[0]) from error

    def problem(self, value: Any) -> str | None:
        """Return a sentence that says what is wrong with a value; None if it is valid."""
        problems: list[str] = []
        for error in self._validator.iter_errors(value):
            where = format_path(tuple(error.instance_path))
            problems.append(f"{where}: {error.message}" if where else error.message)
            if len(problems) > MOST_PROBLEMS:
                problems[-1] = "and more"
                break
        return "; ".join(problems) or None


def _refuse(uri: str) -> Any:
    raise ValueError(f"{uri} is outside the schema; copy what it refers to into $defs")
