"""A problem of a workflow file, at its place in the document."""

from __future__ import annotations

from typing import Literal

import msgspec

from tidemill.core.expressions.paths import Path, format_path

Severity = Literal["error", "unknown", "note"]


class WorkflowProblem(msgspec.Struct, frozen=True):
    """A problem at a path: an error, something that is not understood, or a note on something that has no effect."""

    place: Path
    problem: str
    severity: Severity = "error"

    @property
    def is_note(self) -> bool:
        return self.severity == "note"

    def is_error(self, *, allow_unknown: bool = False) -> bool:
        """Whether the file cannot be used because of it."""
        return self.severity == "error" or (self.severity == "unknown" and not allow_unknown)

    def __str__(self) -> str:
        return f"{format_path(self.place)}: {self.problem}" if self.place else self.problem
