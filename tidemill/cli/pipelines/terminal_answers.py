"""Asks the questions of a workflow file at the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tidemill.cli.render import out
from tidemill.pipelines.workflows.questions import WorkflowQuestion


async def answer_at_terminal(questions: list[WorkflowQuestion]) -> Mapping[str, Any]:
    """The answers to questions, by their names, as a person types them."""
    return {each.name: await asyncio.to_thread(_ask, each) for each in questions}


def _ask(question: WorkflowQuestion) -> dict[str, str]:
    out().print(question.prompt, markup=False)
    answer: dict[str, str] = {}
    if "input" in question.schema["properties"]:
        shown = f" [{question.default_input}]" if question.default_input else ""
        answer["input"] = input(f"text{shown}: ") or question.default_input
    by_name = {each.lower(): each for each in question.buttons}
    while len(by_name) > 1 and "button" not in answer:
        typed = input(f"{' / '.join(question.buttons)}: ").strip().lower()
        if typed in by_name:
            answer["button"] = by_name[typed]
    return answer
