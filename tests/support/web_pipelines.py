"""The pipeline and the workflow of the application that servers of tests serve.

A module's name is part of a stage's code: a test's process and the server's import this one by the same name."""

from __future__ import annotations

from typing import Any

from tidemill.pipelines import DatabaseStates, Pipeline
from tidemill.pipelines.workflows import TriggerWorkflow, parse_workflow


def make_notes() -> Pipeline:
    """A pipeline whose states are in the database."""
    notes = Pipeline("notes", store=DatabaseStates("notes"))

    @notes.stage(input="in/{id}.txt", output="out/{id}.txt", in_process=True)
    def shout(entity: Any, text: str) -> str:
        if text == "bad":
            raise ValueError("this note cannot be shouted")
        return text.upper()

    return notes


def make_greetings() -> list[TriggerWorkflow]:
    """A workflow that an event runs."""
    nodes = [
        {"id": "1", "typeId": "webhook", "name": "hook", "data": {}},
        {"id": "2", "typeId": "set", "name": "said", "data": {"text": "hello {{$.hook.who}}"}},
    ]
    connections = [{"id": "c", "sourceNodeId": "1", "targetNodeId": "2"}]
    data = {"name": "greet", "mode": "trigger", "nodes": nodes, "connections": connections}
    return parse_workflow(data, "greet").triggers
