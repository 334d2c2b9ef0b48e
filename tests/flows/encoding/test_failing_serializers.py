"""Models whose own serializers fail are stored by their fields, as agents of LlamaIndex need it for their memory."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, Field, SerializeAsAny, field_serializer, model_serializer

from tidemill.core.errors import PayloadError
from tidemill.flows.encoding.values import pack, unpack


class Shelf(BaseModel, ABC):
    @abstractmethod
    def read(self) -> list[str]: ...


class Paper(Shelf):
    lines: dict[str, list[str]] = Field(default_factory=dict)

    def read(self) -> list[str]:
        return self.lines["all"]

    @field_serializer("lines")
    def broken(self, lines: Any) -> Any:
        raise TypeError("an old serializer")


class Memory(BaseModel):
    """A class that adds its name to what it is serialised to, and holds something of an abstract class."""

    shelf: SerializeAsAny[Shelf]
    limit: int = 3
    count: Callable[[str], int] = Field(default_factory=lambda: len, exclude=True)

    @model_serializer(mode="wrap")
    def named(self, handler: Any) -> dict[str, Any]:
        return {**handler(self), "class_name": "Memory"}


class Held(BaseModel):
    lock: Any

    @field_serializer("lock")
    def broken(self, lock: Any) -> Any:
        raise TypeError("an old serializer")


def test_a_model_whose_serializers_fail_is_stored_by_its_fields() -> None:
    found = unpack(pack(Memory(shelf=Paper(lines={"all": ["tides"]}), limit=7)))
    assert type(found) is Memory
    assert type(found.shelf) is Paper
    assert (found.shelf.read(), found.limit, found.count("tides")) == (["tides"], 7, 5)


def test_live_objects_behind_a_failing_serializer_are_refused() -> None:
    with pytest.raises(PayloadError, match=r"lock cannot be serialised: .*an old serializer"):
        pack(Held(lock=threading.Lock()))
