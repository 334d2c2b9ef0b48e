"""Tasks that only an admin may start: those of workflows with a node that can run a command."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tidemill.core.errors import ForbiddenError
from tidemill.store.transaction import Reader, Transaction

if TYPE_CHECKING:
    from tidemill.declarations import Declarations


def check_tasks(at: Reader | Transaction, declared: Declarations, tasks: Iterable[str]) -> None:
    """Raise if one of these tasks runs a workflow that only an admin may run, and the caller is not one."""
    if at.may("admin"):
        return
    for task in tasks:
        if (reason := declared.pipelines.admin_reason(task)) is not None:
            raise ForbiddenError(reason)


def tasks_in(definition: Any) -> set[str]:
    """The tasks that a dag's definition names, also within maps and inner dags."""
    return {value for key, value in fields_in(definition) if key == "task" and isinstance(value, str)}


def fields_in(data: Any) -> Iterator[tuple[str, Any]]:
    """All fields within a value, at any depth."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield str(key), value
            yield from fields_in(value)
    elif isinstance(data, list):
        for each in data:
            yield from fields_in(each)
