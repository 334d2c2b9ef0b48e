"""The editor's server and files, and how a page of it is used."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Locator, Page

from tests.support.web import WebServer

APP = """
from pathlib import Path

from tidemill import App
from tidemill.pipelines import transform

app = App("harbour", workflow_folder=str(Path(__file__).parent / "workflows"))


@app.task(name="etl.extract", queue="fetch")
async def extract(day: str = "") -> dict:
    return {}


@app.task(name="etl.load")
async def load(rows: int = 0) -> None: ...


@transform("shorten")
def shorten(entity, files):
    return "short"
"""


BLOG = """{
  "mode": "pipeline",
  "stateRoot": "ROOT",
  "scanInterval": 60,
  "description": "the night watch,  since 1.50",
  "nodes": [
    {"id": "scan", "typeId": "state_scan", "name": "dates", "position": {"x": 0, "y": 0, "colour": "red"},
     "data": {"pattern": "daily/{date}.txt"}},
    {"id": "read", "typeId": "state_read", "name": "day", "position": {"x": 240, "y": 0},
     "data": {"pattern": "{{$.dates.path}}"}, "agentConfig": {"tags": [ ]}},
    {"id": "keep", "typeId": "state_write", "name": "copy", "position": {"x": 480, "y": -90},
     "data": {"pattern": "copies/{{$.dates.id}}.txt", "content": "{{$.day.content}}"}}
  ],
  "connections": [
    {"sourceNodeId": "scan", "targetNodeId": "read"},
    {"sourceNodeId": "read", "targetNodeId": "keep"}
  ]
}
"""


NIGHTLY = """# The nightly load; ask the night watch before you change it.
name: nightly
nodes:
  - name: extract # from the warehouse
    task: etl.extract
    queue: fetch
    args: {day: {$from: run.day}}

  - name: approve
    prompt: "Load {{$.extract.rows}} rows?"
    timeout: 2h
    default: {answer: "no"}

  - name: load
    task: etl.load
    deps: [approve] # never without a person
    args: {rows: {$from: extract.rows}}
    skip_if: approve.answer == 'no'
"""


class Bench:
    """A server with a folder of workflow files, and a page."""

    def __init__(self, folder: Path, web: WebServer, database_url: str) -> None:
        self.folder = folder
        self.database_url = database_url
        self.workflows = folder / "workflows"
        self.web = web

    def file(self, name: str) -> str:
        return (self.workflows / name).read_text()


def node(page: Page, name: str) -> Locator:
    return page.locator(".react-flow__node").filter(has=page.locator(f"b:text-is('{name}')"))


def field(page: Page, name: str) -> Locator:
    return page.locator(".box-form").get_by_label(re.compile(rf"^{name}\b"))


def problems(page: Page) -> Locator:
    return page.locator(".problems")


def connect(page: Page, source: str, target: str) -> None:
    """Draw a line with the mouse."""
    node(page, source).locator(".react-flow__handle.source").first.hover()  # Waits until the diagram stands still.
    end = node(page, target).locator(".react-flow__handle.target").bounding_box()
    assert end is not None
    page.mouse.down()
    page.mouse.move(end["x"] - 20, end["y"] + 8, steps=6)
    page.mouse.move(end["x"] + end["width"] / 2, end["y"] + end["height"] / 2, steps=4)
    page.mouse.up()
