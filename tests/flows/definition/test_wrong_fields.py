"""Fields that do not fit an event are named, with what is wrong, in a line."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.flows import Event, StartEvent, StopEvent, Workflow, step
from tidemill.flows.encoding.events import decode_event
from tidemill.flows.errors import WorkflowRuntimeError


class Topic(StartEvent):
    topic: str
    pages: int = 1


class Answered(Event):
    ok: bool


class Article(Workflow):
    @step
    async def write(self, ev: Topic) -> StopEvent:
        return StopEvent()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "topic is missing"),
    ({"topic": "a", "pages": "many"}, "pages must be a valid integer, and not 'many'"),
    ({"pages": None}, "topic is missing; pages must be a valid integer, and not None"),
]


@pytest.mark.parametrize(("fields", "said"), WRONG)
def test_the_start_of_a_run_names_the_fields_that_do_not_fit(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(WorkflowRuntimeError) as raised:
        Article().run(**fields)
    assert str(raised.value).endswith(f": {said}")


def test_an_event_from_elsewhere_names_the_fields_that_do_not_fit() -> None:
    with pytest.raises(Exception, match=r"event class Answered: ok must be a valid boolean, and not 'perhaps'$"):
        decode_event({"type": f"{__name__}.Answered", "value": {"ok": "perhaps"}})
