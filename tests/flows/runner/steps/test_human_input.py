"""What a question of a flow is called, and what it says."""

from __future__ import annotations

import json
import re
from typing import Any

from tidemill.flows.definition.events import HumanResponseEvent, InputRequiredEvent, StartEvent
from tidemill.flows.definition.topology import Topology
from tidemill.flows.reducer.state.flow_state import FlowState, Wait, Work
from tidemill.flows.runner.steps.human_input import Question, prompt_of, questions, schema_of


class Odd:
    """Something that no JSON Schema speaks of."""


class Answer(HumanResponseEvent):
    odd: Odd


class Plain(HumanResponseEvent):
    size: int
    by: str = ""


def waiting(*asked: tuple[str, dict[str, Any]]) -> list[Question]:
    work = Work(3, "review", None, (), (), StartEvent, 0.0)
    work.waiting = {name: Wait(name, Plain, needed) for name, needed in asked}
    return list(questions(Topology({}), FlowState(works={3: work})))


def test_questions_of_one_step_have_names_of_their_own_that_fit_into_an_address() -> None:
    plain = f"{Plain.__module__}.{Plain.__qualname__}"
    asked = [f"{plain} []", "colour", f"{plain} [('by', 'me')]", "a//b/", "a/b", "x" * 5000, "x" * 4999 + "y", "\x00"]
    names = [each.name for each in waiting(*((question, {}) for question in asked))]
    assert names[:2] == ["review/3/Plain", "review/3/colour"]
    assert names[2].startswith("review/3/Plain-by-me-")
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"review/3/[\w-]{1,80}", name) for name in names)


def test_a_request_says_what_it_is_about_in_its_own_words_or_in_its_fields() -> None:
    assert prompt_of(InputRequiredEvent(order=7, question="Pay it?")) == "Pay it?"
    assert prompt_of(InputRequiredEvent(order=7, sum=3)) == "order: 7, sum: 3"
    assert prompt_of(InputRequiredEvent()) == ""
    assert prompt_of(None) == ""


def test_a_form_has_what_is_to_be_said_and_where_there_can_be_none_it_is_json() -> None:
    schema = json.loads(schema_of(Question("q", Plain, {"by": "me"})) or b"")
    assert (list(schema["properties"]), schema["required"]) == (["size"], ["size"])
    assert schema_of(Question("q", HumanResponseEvent, {})) is None
    assert schema_of(Question("q", Answer, {})) is None
