"""An application with a pipeline for tests of the server: notes are tidied, set as pages, and listed in an index.

PRESS_ROOT     where its files are
PRESS_VERSION  of the stage `tidy`: another one is a change of code
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.pipelines.workflows import parse_workflow

GREETING = {
    "name": "greet",
    "mode": "trigger",
    "nodes": [
        {"id": "1", "typeId": "webhook", "name": "hook", "data": {}},
        {"id": "2", "typeId": "set", "name": "said", "data": {"text": "hello {{$.hook.who}}"}},
    ],
    "connections": [{"id": "c", "sourceNodeId": "1", "targetNodeId": "2"}],
}


def make_press(root: Path | str, version: str = "1") -> Pipeline:
    """The pipeline, with its files under a root."""
    press = Pipeline("press", root=root, backoff=["1h"], approve_above=3, on_orphan="archive")

    @press.stage(input="notes/{day}.txt", output="clean/{day}.txt", in_process=True, version=version)
    def tidy(entity: Any, text: str) -> str:
        entity.note(f"{len(text)} characters")
        if "unreadable" in text:
            raise ValueError(f"the note of {entity.day} cannot be read")
        return text.strip().upper()

    @press.stage(input="clean/{day}.txt", output="page/{day}.html", in_process=True)
    def page(entity: Any, text: str) -> str:
        return f"<script>alert('{entity.day}')</script><h1>{text}</h1>"

    @press.stage(input="page/{day}.html", output="index.txt", collect="day")
    def index(entity: Any, files: list) -> str:
        return "\n".join(file.name for file in files)

    return press


def make_app(root: Path | str, version: str = "1", **settings: Any) -> App:
    """A new application; the server has one of its own."""
    app = App("press", **settings)
    app.pipeline(make_press(root, version))
    for workflow in parse_workflow(GREETING, "greet").triggers:
        app.trigger(workflow)
    return app


app = make_app(os.environ.get("PRESS_ROOT", "."), os.environ.get("PRESS_VERSION", "1"))
