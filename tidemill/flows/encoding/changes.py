"""Changes of a run's state as they are journaled: a field that only its model can serialise is written with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from tidemill.flows.encoding.copies import copy_data
from tidemill.flows.encoding.models import is_stored_with_model
from tidemill.flows.encoding.values import has_stored_form
from tidemill.flows.reducer.state.paths import MISSING, Changes, inner_path, read_path, write_path


def storable_changes(store: Any, changes: Changes) -> Changes:
    """Return the same changes, where a field that cannot be stored by itself is replaced by the model that has it."""
    outer = {found for path, value in changes if (found := _model_path(store, path, value)) is not None}
    if not outer:
        return changes
    models = {path: _Holder(copy_data(read_path(store, path))) for path in outer if not _around(path, outer)}
    alone: list[tuple[str, Any]] = []
    for path, value in changes:
        around = path if path in models else _around(path, models)
        if around is None:
            alone.append((path, value))
        else:
            write_path(models[around], path[len(around) :].lstrip("."), value)
    return (*alone, *((path, box.store) for path, box in models.items()))


def _around(path: str, outer: Iterable[str]) -> str | None:
    return next((each for each in outer if inner_path(each, path) is not None), None)


class _Holder:
    copies = False

    def __init__(self, store: Any) -> None:
        self.store = store


def _model_path(store: Any, path: str, value: Any) -> str | None:
    """Return the path of the outermost model that has to be written for this change; None if the value is enough."""
    place, parts = store, path.split(".") if path else []
    for index, part in enumerate(parts):
        if isinstance(place, BaseModel):
            is_last = index == len(parts) - 1
            if is_stored_with_model(place, part) or (
                is_last and part in type(place).__pydantic_fields__ and not has_stored_form(value)
            ):
                return ".".join(parts[:index])
        place = read_path(place, part)
        if place is MISSING:
            return None
    return None
