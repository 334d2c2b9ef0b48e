"""How values of a saved context are written and read."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tidemill.flows.definition.events import Event, StopEvent
from tidemill.flows.encoding.serializers import JsonSerializer


class Draft(Event):
    n: int = 0


class Note(BaseModel):
    text: str = ""


@pytest.mark.parametrize(
    "value",
    [
        1,
        1.5,
        "a",
        None,
        True,
        [1, {"a": Draft(n=3)}],
        Draft(n=1),
        Draft(**{"n": 1, "extra": "x"}),
        Note(text="t"),
        {"k": []},
    ],
)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    serializer = JsonSerializer()
    assert serializer.deserialize(serializer.serialize(value)) == value


def test_the_result_of_a_stop_event_is_kept() -> None:
    serializer = JsonSerializer()
    assert serializer.deserialize(serializer.serialize(StopEvent(result=2))).result == 2


def test_tuples_become_lists_and_keys_become_text() -> None:
    serializer = JsonSerializer()
    assert serializer.deserialize(serializer.serialize({1: (1, 2)})) == {"1": [1, 2]}


@pytest.mark.parametrize("value", [{1, 2}, b"x", ValueError("x"), object()])
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        JsonSerializer().serialize(value)


def test_only_allowed_classes_are_read() -> None:
    text = JsonSerializer().serialize(Note())
    strict = JsonSerializer(allowed_types=[Draft])
    with pytest.raises(ValueError, match="Note"):
        strict.deserialize(text)
    assert strict.with_types(Note).deserialize(text) == Note()
    assert JsonSerializer(allowed_types=[f"{__name__}.Note"]).deserialize(text) == Note()


@pytest.mark.parametrize(
    ("name", "error"), [("nomodule.X", ImportError), ("os.path.join", ValueError), ("os.Nothing", ValueError)]
)
def test_reading_imports_nothing_and_calls_nothing(name: str, error: type[Exception]) -> None:
    text = f'{{"__is_pydantic": true, "value": {{}}, "qualified_name": "{name}"}}'
    with pytest.raises(error):
        JsonSerializer().deserialize(text)
