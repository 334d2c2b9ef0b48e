"""The editor as a person uses it: workflow files drawn, written, tried and saved; nothing of them is lost."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.console import Watched, require_browser, watched_page
from tests.support.server import TestServer
from tests.support.waiting import PATIENCE
from tests.support.web import WebServer

pytestmark = pytest.mark.long

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


@pytest.fixture(scope="module", autouse=True)  # Before the browser, for it waits in an event loop.
def bench(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    require_browser()
    folder = tmp_path_factory.mktemp("bench")
    (folder / "app.py").write_text(APP)
    (folder / "workflows").mkdir()
    (folder / "states" / "daily").mkdir(parents=True)
    (folder / "states" / "daily" / "2026-01-15.txt").write_text("high water at six")
    url = server.create()
    web = WebServer(url, app=folder / "app.py")
    try:
        asyncio.run(web.wait_ready())
        yield Bench(folder, web, url)
    finally:
        web.close()
        server.drop(url)


@pytest.fixture
def watched(bench: Bench, browser: Browser) -> Iterator[Watched]:
    (bench.workflows / "blog.json").write_text(BLOG.replace("ROOT", str(bench.folder / "states")))
    (bench.workflows / "nightly.yaml").write_text(NIGHTLY)
    with watched_page(browser, bench.web.url) as watched:
        yield watched
    (bench.workflows / "staged.json").unlink(missing_ok=True)  # Not while a page may ask for it.


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


def test_a_pipeline_is_drawn_checked_tried_and_saved(watched: Watched, bench: Bench) -> None:
    page = watched.open("/editor", "Editor")
    page.get_by_role("link", name="blog.json").click()
    expect(page.locator(".react-flow__node")).to_have_count(3)
    expect(page.get_by_text("saved", exact=True)).to_be_visible()

    # A node from the palette is dragged in, and says what it lacks.
    page.get_by_role("button", name="transform", exact=True).drag_to(
        page.locator(".react-flow__pane"), target_position={"x": 300, "y": 420}
    )
    expect(node(page, "transform").locator(".flag")).to_have_text("1")
    expect(problems(page)).to_contain_text("expression is missing")
    field(page, "expression").fill("$.day.content.toUpperCase()")
    expect(problems(page)).to_contain_text("no node of this name leads here")
    watched.keep("editor-problem")

    # Connected, it is right: as the problem said, nothing led to it.
    connect(page, "day", "transform")
    expect(problems(page)).not_to_contain_text("no node of this name")
    expect(node(page, "transform").locator(".flag")).to_have_count(0)
    page.locator(".box-form").get_by_label("name", exact=True).fill("loud")
    page.keyboard.press("Enter")

    # What is pressed in the palette follows what is chosen.
    node(page, "loud").click()
    page.get_by_role("button", name="state_write", exact=True).click()
    expect(page.locator(".react-flow__edge")).to_have_count(4)
    field(page, "pattern").fill("loud/{{$.dates.id}}.txt")
    field(page, "content").fill("{{$.dates.id}}: {{$.loud.result}}")
    expect(problems(page).get_by_role("status")).to_have_text("none")

    # Back and forth, by keyboard and by button.
    page.keyboard.press("Control+z")
    expect(field(page, "content")).to_have_value("")
    page.keyboard.press("Control+Shift+z")
    expect(field(page, "content")).to_have_value("{{$.dates.id}}: {{$.loud.result}}")
    for _ in range(3):
        page.get_by_role("button", name="Undo").click()
    expect(page.locator(".react-flow__node")).to_have_count(4)
    for _ in range(3):
        page.get_by_role("button", name="Redo").click()
    expect(page.locator(".react-flow__node")).to_have_count(5)

    page.get_by_role("button", name="Dry run").click()
    page.get_by_label("Entity", exact=True).fill("2026-01-15")
    page.get_by_role("dialog").get_by_role("button", name="Run", exact=True).click()
    told = page.get_by_role("region", name="Result of the dry run")
    expect(told).to_contain_text("loud/2026-01-15.txt")
    expect(told).to_contain_text("2026-01-15: HIGH WATER AT SIX")
    expect(told.get_by_text("would be built")).to_have_count(2)
    watched.keep("editor-dry-run")
    assert watched.serious_problems() == []
    page.keyboard.press("Escape")
    assert sorted(each.name for each in (bench.folder / "states").iterdir()) == ["daily"]

    before = bench.file("blog.json")
    page.keyboard.press("Control+s")
    changes = page.get_by_role("region", name="Changes to blog.json")
    expect(changes.locator(".added").first).to_be_visible()
    expect(changes).to_contain_text('"typeId": "state_write"')
    watched.keep("editor-diff")
    assert watched.serious_problems() == []
    assert bench.file("blog.json") == before
    page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved blog.json.")).to_be_visible()
    expect(page.get_by_text("saved", exact=True)).to_be_visible()
    expect(page.get_by_text("changed on the server")).to_have_count(0)  # The user's own save is no conflict.

    after = bench.file("blog.json")
    kept = after.split("\n")
    at = 0
    for line in before.split("\n"):  # Every line that was there still is, in its order; a comma may have come.
        found = [index for index in range(at, len(kept)) if kept[index].rstrip(",") == line.rstrip(",")]
        assert found, f"{line!r} is lost:\n{after}"
        at = found[0] + 1
    assert '"the night watch,  since 1.50"' in after
    written = json.loads(after)
    assert [each["name"] for each in written["nodes"]] == ["dates", "day", "copy", "loud", "write"]
    assert written["nodes"][3]["data"] == {"expression": "$.day.content.toUpperCase()"}
    ids = {each["name"]: each["id"] for each in written["nodes"]}
    links = [(each["sourceNodeId"], each["targetNodeId"]) for each in written["connections"]]
    assert links[2:] == [("read", ids["loud"]), (ids["loud"], ids["write"])]
    entry = page.request.get(f"{bench.web.url}/api/v1/audit?action=workflow").json()["items"][0]
    assert (entry["target"], entry["before"]["text"], entry["after"]["text"]) == ("blog.json", before, after)


def test_a_dag_in_yaml_keeps_its_comments_and_says_which_would_be_lost(watched: Watched, bench: Bench) -> None:
    page = watched.open("/editor/nightly.yaml", "nightly.yaml")
    expect(page.locator(".react-flow__node")).to_have_count(3)
    expect(page.locator(".react-flow__edge.implied")).to_have_count(1)
    node(page, "load").click()
    field(page, "queue").fill("slow")
    page.locator(".box-form").get_by_label("Connect from").select_option(label="extract")
    page.get_by_role("button", name="Connect", exact=True).click()
    expect(page.locator(".react-flow__edge")).to_have_count(3)

    # A new name is told to everybody who reads it.
    node(page, "extract").click()
    page.locator(".box-form").get_by_label("name", exact=True).fill("fetch_rows")
    page.keyboard.press("Enter")
    expect(node(page, "fetch_rows")).to_be_visible()
    page.get_by_role("button", name="text", exact=True).click()
    text = page.get_by_label("Text of nightly.yaml")
    expect(text).to_have_value(re.compile(r"rows: \{\$from: fetch_rows.rows\}"))
    expect(text).to_have_value(re.compile(r"Load \{\{\$\.fetch_rows\.rows\}\} rows\?"))

    # Text and diagram are the same file: typed text is drawn, and a syntax error is shown.
    whole = text.input_value()
    text.fill(whole.replace("deps: [approve, fetch_rows]", "deps: [approve, nobody"))
    expect(problems(page)).to_contain_text("not YAML")
    page.get_by_role("button", name="both", exact=True).click()
    expect(page.locator(".canvas .over")).to_contain_text("line")
    expect(page.locator(".react-flow__node")).to_have_count(3)
    watched.keep("editor-stale")
    text.fill(whole.replace("fetch_rows]", "nobody]"))
    expect(node(page, "load").locator(".flag")).to_be_visible()
    expect(problems(page)).to_contain_text("which is not a node of this dag")
    text.fill(whole)
    expect(problems(page).get_by_role("status")).to_have_text("none")

    page.get_by_role("button", name="Save …").click()
    expect(page.get_by_role("dialog")).to_contain_text("fetch_rows")
    expect(page.get_by_role("dialog")).not_to_contain_text("will be lost")
    page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved nightly.yaml.")).to_be_visible()
    expected = (
        NIGHTLY.replace("name: extract", "name: fetch_rows")
        .replace("extract.rows", "fetch_rows.rows")
        .replace("deps: [approve]", "deps: [approve, fetch_rows]")
        .replace("== 'no'\n", "== 'no'\n    queue: slow\n")
    )
    assert bench.file("nightly.yaml") == expected

    page.get_by_role("button", name="diagram", exact=True).click()
    node(page, "load").click()
    page.keyboard.press("Delete")
    expect(page.locator(".react-flow__node")).to_have_count(2)
    page.get_by_role("button", name="Save …").click()
    expect(page.get_by_role("dialog")).to_contain_text("A comment will be lost")
    expect(page.get_by_role("dialog")).to_contain_text("# never without a person")
    page.get_by_role("button", name="Continue editing").click()
    page.keyboard.press("Control+z")
    expect(page.locator(".react-flow__node")).to_have_count(3)


def test_two_people_lose_nothing_to_each_other(watched: Watched, bench: Bench) -> None:
    page = watched.open("/editor/nightly.yaml", "nightly.yaml")
    node(page, "load").click()
    field(page, "queue").fill("mine")
    theirs = NIGHTLY.replace("queue: fetch", "queue: theirs")
    (bench.workflows / "nightly.yaml").write_text(theirs)
    page.get_by_role("button", name="Save …").click()
    page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    alert = page.get_by_role("alert").filter(has_text="This file was changed on the server")
    expect(alert).to_be_visible()
    assert bench.file("nightly.yaml") == theirs
    watched.keep("editor-theirs")
    alert.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("region", name="Changes on the server").locator(".added")).to_contain_text("queue: theirs")
    page.keyboard.press("Escape")

    # What is not saved outlives the page.
    page.on("dialog", lambda asked: asked.accept())
    page.reload()
    expect(alert).to_be_visible()
    node(page, "load").click()
    expect(field(page, "queue")).to_have_value("mine")
    alert.get_by_role("button", name="Use the server's version").click()
    expect(alert).to_have_count(0)
    node(page, "extract").click()
    expect(field(page, "queue")).to_have_value("theirs")
    page.keyboard.press("Control+z")
    node(page, "load").click()
    expect(field(page, "queue")).to_have_value("mine")
    watched.wrong = [each for each in watched.wrong if "412" not in each]


def test_a_new_workflow_is_made_by_keyboard_and_what_is_broken_is_not_saved_unasked(
    watched: Watched, bench: Bench
) -> None:
    (bench.workflows / "alarm.json").unlink(missing_ok=True)
    page = watched.open("/editor", "Editor")
    page.get_by_role("button", name="New file").click()
    page.get_by_role("dialog").get_by_label("Name").fill("alarm")
    page.get_by_role("radio", name=re.compile("^Workflow")).check()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="alarm.json")).to_be_visible()
    for kind in ("scheduled", "if", "http"):
        page.get_by_role("button", name=kind, exact=True).focus()
        page.keyboard.press("Enter")
        expect(node(page, kind)).to_be_visible()
    expect(page.locator(".react-flow__edge")).to_have_count(2)
    field(page, "url").fill("https://example.org/{{$.scheduled.scheduledAt}}")
    page.get_by_role("button", name="Add to headers").click()
    page.get_by_label("headers 1 name").fill("X-Day")
    page.get_by_label("headers 1 value").fill("7")
    page.get_by_role("button", name="Save …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("condition is missing")
    expect(dialog.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    dialog.get_by_role("button", name="Continue editing").click()
    page.get_by_role("button", name=re.compile("condition is missing")).click()
    field(page, "condition").fill("1 > 0")
    expect(problems(page).get_by_role("status")).to_have_text("none")
    page.get_by_role("button", name="Auto layout").click()
    page.get_by_role("button", name="Dry run").click()
    page.get_by_label("Payload of the event").fill('{"scheduledAt": 7}')
    page.get_by_role("dialog").get_by_role("button", name="Run", exact=True).click()
    expect(page.get_by_role("region", name="Result of the dry run")).to_contain_text("https://example.org/7")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved alarm.json.")).to_be_visible()
    made = json.loads(bench.file("alarm.json"))
    assert [each["typeId"] for each in made["nodes"]] == ["scheduled", "if", "http"]
    assert made["connections"][1]["sourceConnectorId"] == "true"
    assert made["nodes"][2]["data"]["headers"] == [{"name": "X-Day", "value": 7}]

    # Boxes are moved by keys and by mouse, and the file says where they stand.
    node(page, "http").focus()
    page.keyboard.press("Enter")
    expect(field(page, "url")).to_be_visible()
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(page.get_by_text("unsaved changes")).to_be_visible()
    box = node(page, "if").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 12)
    page.mouse.down()
    page.mouse.move(box["x"] + 60, box["y"] + 112, steps=5)
    page.mouse.up()
    page.keyboard.press("Control+s")
    dialog.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("unsaved changes")).to_have_count(0)
    moved = json.loads(bench.file("alarm.json"))
    places = [[each["position"] for each in file["nodes"]] for file in (made, moved)]
    assert places[0][0] == places[1][0]
    assert places[1][1]["y"] > places[0][1]["y"]
    assert places[1][2]["y"] > places[0][2]["y"]
    watched.wrong = [each for each in watched.wrong if "404" not in each]  # It was asked for before it was there.


def test_everybody_can_read_the_editor(watched: Watched, bench: Bench) -> None:
    broken = json.loads(bench.file("blog.json"))
    broken["nodes"][2]["data"]["content"] = "{{$.days.content}}"
    (bench.workflows / "blog.json").write_text(json.dumps(broken, indent=2))
    wrong: dict[str, list[str]] = {}

    def look_at(name: str) -> None:
        expect(watched.page.locator(".loading")).to_have_count(0)
        if found := watched.seen_by_all(f"editor-{name}"):
            wrong[name] = found

    page = watched.open("/editor", "Editor")
    expect(page.get_by_role("link", name="blog.json")).to_be_visible()
    look_at("list")
    page = watched.open("/editor/blog.json", "blog.json")
    expect(node(page, "copy").locator(".flag")).to_be_visible()
    look_at("file")
    page.get_by_role("button", name=re.compile("did you mean 'day'")).click()
    expect(field(page, "content")).to_be_visible()
    look_at("graph")
    page.get_by_role("button", name="both", exact=True).click()
    look_at("both")
    page = watched.open("/editor/nightly.yaml", "nightly.yaml")
    node(page, "approve").click()
    expect(field(page, "prompt")).to_be_visible()
    look_at("dag")
    assert wrong == {}


def test_a_file_is_renamed_with_what_is_not_saved_and_deleted(watched: Watched, bench: Bench) -> None:
    page = watched.open("/editor/nightly.yaml", "nightly.yaml")
    node(page, "load").click()
    field(page, "queue").fill("mine")
    page.get_by_role("button", name="Rename …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("New name").fill("blog.json")
    expect(dialog).to_contain_text("Renames it to blog.json.yaml.")
    dialog.get_by_label("New name").fill("daily")
    dialog.get_by_role("button", name="Rename", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="daily.yaml")).to_be_visible()
    expect(page).to_have_url(re.compile("/editor/daily.yaml$"))
    assert not (bench.workflows / "nightly.yaml").exists()
    assert bench.file("daily.yaml") == NIGHTLY
    node(page, "load").click()
    expect(field(page, "queue")).to_have_value("mine")

    page.get_by_role("button", name="Delete …").click()
    watched.keep("editor-delete")
    dialog.locator("footer").get_by_role("button", name="Close").click()
    assert bench.file("daily.yaml") == NIGHTLY
    page.get_by_role("button", name="Delete …").click()
    dialog.get_by_role("button", name="Delete file").click()
    expect(page.get_by_role("heading", level=1, name="Editor")).to_be_visible()
    expect(page.get_by_text("Deleted daily.yaml.")).to_be_visible()
    assert not (bench.workflows / "daily.yaml").exists()
    expect(page.get_by_role("link", name="daily.yaml")).to_have_count(0)

    page.get_by_role("button", name="Delete blog.json").click()
    dialog.get_by_role("button", name="Delete file").click()
    expect(page.get_by_text("Deleted blog.json.")).to_be_visible()
    expect(page.get_by_role("link", name="blog.json")).to_have_count(0)
    trail = page.request.get(f"{bench.web.url}/api/v1/audit?action=workflow").json()["items"][:3]
    assert [(each["action"], each["target"]) for each in trail] == [
        ("workflow.delete", "blog.json"),
        ("workflow.delete", "daily.yaml"),
        ("workflow.rename", "nightly.yaml"),
    ]


def test_a_list_of_stages_is_connected_and_put_in_order(watched: Watched, bench: Bench) -> None:
    stages = """{
  "name": "staged", "stateRoot": "states",
  "stages": [
    {"id": "big", "type": "transform", "pattern": "big/{id}.txt", "description": "keep me",
     "node": {"typeId": "transform", "data": {"expression": "$.logs.content.trim()"}}},
    {"id": "logs", "type": "source", "pattern": "in/{id}.txt"}
  ]
}
"""
    (bench.workflows / "staged.json").write_text(stages)
    page = watched.open("/editor/staged.json", "staged.json")
    expect(problems(page)).to_contain_text("a transform has an input")
    connect(page, "logs", "big")
    expect(problems(page).get_by_role("status")).to_have_text("none")
    node(page, "big").click()
    page.locator(".box-form").get_by_label(re.compile("^typeId")).select_option("rss")
    expect(problems(page)).to_contain_text("big")
    page.keyboard.press("Control+z")
    page.get_by_role("button", name="transform", exact=True).click()
    field(page, "expression").fill("$.big.content + $.logs.path")
    expect(page.locator(".react-flow__edge.implied")).to_have_count(1)
    expect(problems(page).get_by_role("status")).to_have_text("none")
    page.get_by_role("button", name="Save …").click()
    page.get_by_role("dialog").get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Saved staged.json.")).to_be_visible()
    made = json.loads(bench.file("staged.json"))["stages"]
    assert [(each["id"], each.get("input")) for each in made] == [("logs", None), ("big", "logs"), ("stage", "big")]
    assert made[1]["description"] == "keep me"


def test_a_workflow_is_run_before_it_is_saved_whole_or_up_to_a_node_and_with_pinned_outputs(
    watched: Watched, bench: Bench
) -> None:
    flow = """{
  "mode": "trigger",
  "nodes": [
    {"id": "go", "typeId": "start", "name": "go", "data": {}},
    {"id": "loud", "typeId": "transform", "name": "loud", "data": {"expression": "$.go.word.toUpperCase()"}},
    {"id": "many", "typeId": "hardwired", "name": "many", "data": {"json": "[1, 2, 3]"}}
  ],
  "connections": [{"sourceNodeId": "go", "targetNodeId": "loud"}, {"sourceNodeId": "loud", "targetNodeId": "many"}]
}
"""
    (bench.workflows / "word.json").write_text(flow)
    page = watched.open("/editor/word.json", "word.json")
    runs = page.locator(".runs")
    expect(runs.get_by_text("No runs yet")).to_be_visible()
    runs.get_by_label("Payload").fill('{"word": "tide"}')
    runs.get_by_role("button", name="Run", exact=True).click()
    expect(runs.get_by_role("link", name=re.compile("Job "))).to_be_visible()
    options = ["worker", "app.py", "--only", "jobs", "--database-url", bench.database_url]
    worker = subprocess.Popen([sys.executable, "-m", "tidemill.cli.main", *options], cwd=bench.folder)
    try:
        loud = runs.get_by_role("region", name="Output of loud")
        expect(loud).to_contain_text("TIDE", timeout=PATIENCE * 1000)
        expect(node(page, "many").locator(".items")).to_have_text("3")
        node(page, "loud").click()
        expect(runs.get_by_role("region")).to_have_count(1)
        loud.get_by_role("button", name="Pin this output").click()
        expect(page.get_by_text("unsaved changes")).to_be_visible()
        runs.get_by_label("Payload").fill('{"word": 7}')  # What cannot be upper-cased.
        runs.get_by_role("button", name="Run to loud").click()
        expect(runs.get_by_role("group", name="Last runs").get_by_role("button")).to_have_count(2)
        expect(loud.get_by_text("pinned", exact=True)).to_be_visible(timeout=PATIENCE * 1000)
        expect(node(page, "loud").locator(".result")).to_contain_text("TIDE")
        loud.get_by_text("Input", exact=True).click()
        expect(loud.get_by_role("group", name="Input of loud")).to_contain_text("word")
        expect(node(page, "many").locator(".items")).to_have_count(0, timeout=PATIENCE * 1000)
        expect(node(page, "loud").locator(".items")).to_have_text("1", timeout=PATIENCE * 1000)
        watched.keep("editor-runs")
    finally:
        worker.terminate()
        worker.wait(PATIENCE)
