"""Validate answers to input nodes against their JSON Schema.

A schema must be self-contained: a `$ref` to another file or URL is rejected, so that validation does no I/O.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidemill.core.expressions.known_valid import found_valid, is_known_valid
from tidemill.core.expressions.paths import format_path

if TYPE_CHECKING:
    import jsonschema_rs

MOST_PROBLEMS = 5


class SchemaProblem(Exception):
    """The schema is invalid; the message says why."""


class Schema:
    """A schema that is parsed once and validates many values."""

    def __init__(self, schema: dict[str, Any] | bool) -> None:
        self._schema = schema
        if not is_known_valid(schema):
            _ = self._validator
            found_valid(schema)

    @cached_property
    def _validator(self) -> jsonschema_rs.Validator:
        import jsonschema_rs  # 6 MB, and few processes validate values

        try:
            return jsonschema_rs.validator_for(self._schema, retriever=_refuse)
        except jsonschema_rs.ValidationError as error:
            where = format_path(tuple(error.instance_path))
            raise SchemaProblem(f"at {where}: {error.message}" if where else error.message) from error
        except (ValueError, TypeError) as error:
            raise SchemaProblem(str(error).strip().splitlines()[0]) from error

    def problem_of_default(self, value: Any) -> str | None:
        """The same as `problem`, for a value that is declared beside the schema."""
        if is_known_valid(self._schema, value):
            return None
        problem = self.problem(value)
        if problem is None:
            found_valid(self._schema, value)
        return problem

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
