"""Which role a workflow needs: an editor may save one, but what can run a command or write any file is for admins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidemill.declarations import Declarations
from tidemill.ops.operator.task_roles import fields_in
from tidemill.pipelines.workflows.checks.kinds import is_known
from tidemill.pipelines.workflows.nodes import NODE_TYPES, TRANSFORMS

#: Fields that name the folder in which a pipeline reads and writes states.
_ROOTS = ("stateRoot", "dataDirectory", "state_root")


def admin_reason(data: Any, *, is_pipeline: bool, declared: Declarations) -> str | None:
    """Why only an admin may save a file with this content; None if an editor may.

    Looks at every field, so that a file with errors is judged as well.
    """
    powerful = {name for name, each in NODE_TYPES.items() if each.role == "admin"}
    for key, value in fields_in(data):
        if key == "typeId" and isinstance(value, str):
            if value in powerful:
                return f"nodes of type {value} need the role admin"
            if not is_known(value) and value not in TRANSFORMS:
                return f"the type {value!r} is not known here, and may need the role admin"
        if key == "task" and isinstance(value, str) and (reason := declared.pipelines.admin_reason(value)) is not None:
            return reason
    if not is_pipeline or data.get("stateStore") == "database":
        return None
    roots = [str(value) for key, value in fields_in(data) if key in _ROOTS and value] or ["."]
    for root in roots:
        if not any(Path(root).resolve().is_relative_to(each.resolve()) for each in known_roots(declared)):
            return f"{root} is not a folder of an existing pipeline: states in a new folder need the role admin"
    return None


def known_roots(declared: Declarations) -> list[Path]:
    """The folders in which pipelines of the application keep their states."""
    return [each.root for each in declared.pipelines.known.values() if each.store is None]
