"""The application that attackers reach: as `web_app`, with a page and a workflow that runs a command."""

from __future__ import annotations

import os
from pathlib import Path

from litestar import get, post

from tests.support.web_app import make_app, make_ovens
from tests.support.web_pipelines import make_greetings, make_notes
from tidemill.core.web.page import Page
from tidemill.core.web.webhook_signature import WebhookSignature
from tidemill.pipelines.workflows import parse_workflow


@get("/look", opt={"role": "viewer"})
async def look() -> dict[str, int]:
    return {"seen": 1}


@post("/act", opt={"role": "operator"})
async def act() -> dict[str, int]:
    return {"done": 1}


@post("/undeclared")
async def undeclared() -> dict[str, int]:
    """Its author has forgotten the role."""
    return {"done": 1}


def shell_workflow() -> dict[str, object]:
    """A workflow whose node runs a command with a word from the event."""
    nodes = [
        {"id": "1", "typeId": "webhook", "name": "hook", "data": {}},
        {"id": "2", "typeId": "run_command", "name": "shell", "data": {"command": "printf %s {{$.hook.payload.word}}"}},
    ]
    connections = [{"id": "c", "sourceNodeId": "1", "targetNodeId": "2"}]
    return {"name": "shell", "mode": "trigger", "nodes": nodes, "connections": connections}


folder = Path(os.environ["ATTACKED_FOLDER"])
app = make_app(workflow_folder=str(folder / "workflows"))
app.pipeline(make_notes())
app.monitor(make_ovens())
for workflow in [*make_greetings(), *parse_workflow(shell_workflow(), "shell").triggers]:
    app.trigger(workflow)
(signed,) = make_greetings()
signed.name = "signed"
app.trigger(signed, signature=WebhookSignature(form="github", secret_variable="ATTACKED_HOOK"))
app.add_page(Page("board", "Board", folder / "page", [look, act, undeclared]))
