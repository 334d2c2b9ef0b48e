"""Workflow files in the editor: made, renamed, deleted, and edited by two people at once."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support.console import Watched
from tests.support.editor import NIGHTLY, Bench, field, node, problems

pytestmark = pytest.mark.long


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


def test_a_file_that_cannot_be_read_is_not_said_to_be_of_a_form(watched: Watched, bench: Bench) -> None:
    broken = bench.workflows / "broken.json"
    broken.write_text('{"mode": "trigger",\n "nodes": [}')
    page = watched.open("/editor", "Editor")
    expect(page.get_by_role("row").filter(has_text="broken.json")).to_contain_text("cannot be read")
    page.get_by_role("link", name="broken.json").click()
    expect(page.get_by_role("heading", level=1, name="broken.json")).to_be_visible()
    header = page.locator(".head")
    expect(header).to_contain_text("cannot be read")
    expect(header).not_to_contain_text("dag")
    watched.keep("editor-broken")
    page.get_by_role("button", name="diagram", exact=True).click()
    expect(page.locator(".canvas").get_by_role("alert")).to_contain_text("line 2")
    expect(page.locator(".canvas").get_by_role("alert")).not_to_contain_text("last valid text")

    page.get_by_role("button", name="text", exact=True).click()
    page.get_by_role("textbox", name="Text of broken.json").fill('{"mode": "trigger", "nodes": []}')
    expect(header).to_contain_text("trigger")
    expect(header).not_to_contain_text("cannot be read")
    broken.unlink()


def test_a_file_that_cannot_be_read_opens_as_text_at_its_error(watched: Watched, bench: Bench) -> None:
    broken = '{\n  "mode": "trigger",\n  "nodes": [\n    {"id": "go" "typeId": "start", "name": "go"}\n  ]\n}\n'
    (bench.workflows / "broken.json").write_text(broken)
    page = watched.open("/editor/broken.json", "broken.json")
    text = page.get_by_label("Text of broken.json")
    expect(text).to_be_focused()
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"Not valid JSON: .*\(line 4\)$"))
    marked = "area => area.value.slice(area.selectionStart, area.selectionEnd)"
    assert text.evaluate(marked) == '    {"id": "go" "typeId": "start", "name": "go"}'
    expect(page.locator(".gutter .bad")).to_have_text("4")
    expect(page.get_by_role("button", name="text", exact=True)).to_have_attribute("aria-pressed", "true")
    text.fill(broken.replace('"go" ', '"go", '))
    expect(page.get_by_role("alert")).to_have_count(0)
    page.get_by_role("button", name="diagram", exact=True).click()
    expect(node(page, "go")).to_be_visible()
    (bench.workflows / "broken.json").unlink()


def test_nodes_added_by_clicks_stay_in_view_and_their_forms_explain_every_field(watched: Watched, bench: Bench) -> None:
    page = watched.open("/editor", "Editor")
    page.get_by_role("button", name="New file").click()
    page.get_by_role("dialog").get_by_label("Name").fill("long-row")
    page.get_by_role("radio", name=re.compile("^Workflow")).check()
    page.keyboard.press("Enter")
    kinds = page.locator(".node-palette .kind")
    expect(kinds.first).to_have_text("start")  # A workflow begins with a start.
    expect(page.locator(".box-form").get_by_label("stateRoot")).to_have_count(0)  # It has no states.
    for kind in ("start", "http", "run_command", "postgres_query", "notification", "prompt"):
        page.get_by_role("button", name=kind, exact=True).click()
        expect(node(page, kind)).to_be_in_viewport(ratio=0.99)

    # A prompt has an input unless it is turned off, and a problem of a field does not hide what the field is.
    show = field(page, "showInput")
    expect(show).to_be_checked()
    show.uncheck()
    expect(field(page, "message")).to_have_accessible_description("message is missing What the person is asked.")
    page.get_by_role("button", name="text", exact=True).click()
    expect(page.get_by_label("Text of long-row.json")).to_have_value(re.compile(r'"showInput": false'))
    watched.wrong = [each for each in watched.wrong if "404" not in each]  # It was asked for before it was there.
