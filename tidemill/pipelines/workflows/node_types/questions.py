"""Nodes that ask a person. A workflow stops before it runs one: see `workflows/questions.py`."""

from __future__ import annotations

from typing import Any

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.nodes import node_type


@node_type("dialog")
@node_type("prompt")
def ask_person(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Asks a person and waits for the answer: returns the `button` and the `input`."""
    raise ConfigError(
        "nothing here can ask a person: pin its output, or run the workflow in an application (`tidemill up`)"
    )
