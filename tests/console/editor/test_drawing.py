"""The editor as a person uses it: workflow files drawn, written, tried and saved; nothing of them is lost."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tests.support.console import Watched
from tests.support.editor import NIGHTLY, Bench, connect, field, node, problems

pytestmark = pytest.mark.long


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

    # Every node that reads the output of a renamed one gets the new name.
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


def test_the_editor_is_accessible(watched: Watched, bench: Bench) -> None:
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


def test_a_node_may_get_any_name_and_no_box_hides_another(watched: Watched, bench: Bench) -> None:
    at = {"x": 5, "y": 5}
    written = {
        "version": 2,
        "mode": "trigger",
        "nodes": [
            {"id": "1", "typeId": "start", "name": "go", "position": at, "data": {}},
            {"id": "2", "typeId": "transform", "name": "one", "position": at, "data": {"expression": "$.go.n-1"}},
            {"id": "3", "typeId": "set", "name": "two", "position": at,
             "data": {"fields": {"a": "{{$.one?.result}} {{$['one'].result + $.oneself}}", "b": "$.one"}}},
        ],
        "connections": [{"sourceNodeId": "1", "targetNodeId": "2"}, {"sourceNodeId": "2", "targetNodeId": "3"}],
    }  # fmt: skip
    (bench.workflows / "named.json").write_text(json.dumps(written))
    page = watched.open("/editor/named.json", "named.json")
    expect(page.get_by_text("Unknown field: kept unchanged.")).to_have_count(0)
    for name, after in (("go", "the start"), ("one", "my one"), ("my one", "größe")):
        node(page, name).click()  # It would not be the one that is clicked if another covered it.
        name_field = page.locator(".box-form").get_by_label("name", exact=True)
        expect(name_field).to_have_value(name)
        name_field.fill(after)
        page.keyboard.press("Enter")
        expect(node(page, after)).to_be_visible()
    page.get_by_role("button", name="text", exact=True).click()
    found = json.loads(page.get_by_label("Text of named.json").input_value())["nodes"]
    assert found[1]["data"]["expression"] == "$['the start'].n-1"
    # By its dots it became one in brackets, and these stay.
    assert found[2]["data"]["fields"]["a"] == "{{$['größe']?.result}} {{$['größe'].result + $.oneself}}"
    (bench.workflows / "named.json").unlink()
