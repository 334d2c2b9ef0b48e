"""The subject of a state: what a stage's function gets as its first argument."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Entity(Mapping[str, str]):
    """The subject of a state: its variables, `entity["date"]` or `entity.date`, its `full_id` and its `output_path`.

    The last two are also its `id` and its `path`, unless it has variables of these names.
    """

    def __init__(self, full_id: str, variables: Mapping[str, str], output_path: str) -> None:
        self.full_id = full_id
        self.output_path = output_path
        self.variables = dict(variables)
        self.id = self.variables.get("id", full_id)
        self.path = self.variables.get("path", output_path)
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Add a line to the log of this build."""
        self.notes.append(str(text))

    def __getitem__(self, name: str) -> str:
        return self.variables[name]

    def __iter__(self) -> Any:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)

    def __getattr__(self, name: str) -> str:
        try:
            return self.__dict__["variables"][name]
        except KeyError:
            raise AttributeError(f"this entity has no {name!r}; it has {', '.join(self.variables) or 'none'}") from None

    def __repr__(self) -> str:
        return f"<Entity {self.full_id}>"
