"""Questions of workflow files to people: the nodes `dialog` and `prompt`.

A workflow that reaches such a node runs everything that does not depend on the answer, and stops. It goes on from the
outputs of the nodes that are done, with the answers: at once at a terminal, or in another job once a person has
answered.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.nodes import Node, filled

ASKING = ("dialog", "prompt")
#: Names of nodes that mean something else in the run that asks.
RESERVED = ("run", "item", "index", "continue")
_UNSAFE = re.compile(r"[^A-Za-z0-9_]")

#: Outputs of the nodes that are done, by id: each with its item.
Outputs = dict[str, list[tuple[dict[str, Any], Any]]]


class WorkflowQuestion(msgspec.Struct, frozen=True):
    """A question to a person; `schema` is the JSON Schema of the answer."""

    name: str
    prompt: str
    schema: dict[str, Any]
    buttons: list[str]
    default_input: str


class AskedItem(msgspec.Struct, frozen=True):
    """An item that reached a node that asks, and its question."""

    item: dict[str, Any]
    question: WorkflowQuestion


class Progress(msgspec.Struct):
    """How far a run of a workflow has come: what is done, and what it asks, by the ids of nodes."""

    outputs: Outputs = {}
    asked: dict[str, list[AskedItem]] = {}

    @property
    def questions(self) -> list[WorkflowQuestion]:
        return [each.question for asked in self.asked.values() for each in asked]

    def ask(self, node: Node, items: list[dict[str, Any]]) -> None:
        """Stop at a node: one question for each item, each with its own name."""
        names = {each.name for each in self.questions}
        found = self.asked[node.id] = list[AskedItem]()
        for item in items:
            name = _free_name(node.name, names)
            names.add(name)
            found.append(AskedItem(item, _question(node, item, name)))

    def take_answers(self, answers: Mapping[str, Any]) -> None:
        """Make the answers, by the names of their questions, the outputs of the nodes that asked."""
        for id, asked in self.asked.items():
            self.outputs[id] = [(each.item, _answer(each.question, answers.get(each.question.name))) for each in asked]
        self.asked = {}


#: Answers questions at once, by their names.
AnswerAtOnce = Callable[[list[WorkflowQuestion]], Awaitable[Mapping[str, Any]]]


#: Has people asked, and a task run afterwards: its arguments are the name of the workflow, the questions, the task, its
#: arguments, the progress for its argument `resumed`, and a key: the same key asks once. Returns the id of the run that
#: asks.
AskLater = Callable[[str, list[WorkflowQuestion], str, dict[str, Any], Any, str], Awaitable[int]]


def _free_name(node: str, taken: set[str]) -> str:
    base = _UNSAFE.sub("_", node)[:80]
    base = base if base[:1].isalpha() and base not in RESERVED else f"ask_{base}"
    return next(name for number in count(1) if (name := base if number == 1 else f"{base}_{number}") not in taken)


def _question(node: Node, item: Mapping[str, Any], name: str) -> WorkflowQuestion:
    data = filled(node, item)
    parts = [str(each).strip() for each in (data.get("title"), data.get("message")) if each]
    buttons = list(dict.fromkeys(each.strip() for each in str(data.get("buttons") or "OK").split(",") if each.strip()))
    default = str(data.get("defaultInput") or "")
    fields: dict[str, Any] = {}
    if data.get("showInput", node.type == "prompt" or bool(default)):
        fields["input"] = {"type": "string", **({"default": default} if default else {})}
    fields["button"] = {"enum": buttons, **({"default": buttons[0]} if len(buttons) == 1 else {})}
    schema = {"type": "object", "properties": fields, "additionalProperties": False}
    if len(buttons) > 1:
        schema["required"] = ["button"]
    return WorkflowQuestion(name, ": ".join(parts) or node.name, schema, buttons, default)


def _answer(question: WorkflowQuestion, given: Any) -> dict[str, Any]:
    """What a node that asked returns: the button, and the input."""
    answer = given if isinstance(given, Mapping) else {}
    button = answer.get("button", question.buttons[0] if len(question.buttons) == 1 else None)
    if button not in question.buttons:
        raise ConfigError(f"{question.name}: the button is one of {', '.join(question.buttons)}, and not {button!r}")
    return {"button": button, "input": str(answer.get("input", question.default_input))}
