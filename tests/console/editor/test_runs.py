"""Runs in the editor: of drafts, whole or in part, with pinned outputs, and of dags as they are drawn."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.support.console import Watched
from tests.support.editor import Bench, node
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.long


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
    with worker(bench):
        loud = runs.get_by_role("region", name="Output of loud")
        expect(loud).to_contain_text("TIDE", timeout=PATIENCE * 1000)
        expect(node(page, "many").locator(".items")).to_have_text("3")
        node(page, "loud").click()
        expect(runs.get_by_role("region")).to_have_count(1)
        loud.get_by_role("button", name="Pin this output").click()
        expect(page.get_by_text("unsaved changes")).to_be_visible()
        expect(node(page, "loud")).to_contain_text("transform · pinned")
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


def test_the_nodes_of_stages_are_pinned_too(watched: Watched, bench: Bench) -> None:
    stages = {
        "name": "staged", "stateRoot": str(bench.folder / "states"),
        "stages": [
            {"id": "logs", "type": "source", "pattern": "daily/{date}.txt"},
            {"id": "big", "type": "transform", "input": "logs", "pattern": "big/{date}.txt",
             "node": {"typeId": "if", "data": {"condition": "true"}},
             "then": {"typeId": "transform", "data": {"expression": "$.logs.content.toUpperCase()"}}},
        ],
    }  # fmt: skip
    (bench.workflows / "staged.json").write_text(json.dumps(stages, indent=1))
    page = watched.open("/editor/staged.json", "staged.json")
    runs = page.locator(".runs")
    runs.get_by_label("For entity").fill("2026-01-15")
    runs.get_by_role("button", name="Run", exact=True).click()
    with worker(bench):
        made = runs.get_by_role("region", name="Output of big.then")
        expect(made).to_contain_text("HIGH WATER AT SIX", timeout=PATIENCE * 1000)
        made.get_by_role("button", name="Pin this output").click()
        expect(node(page, "big")).to_contain_text("if · pinned")
        runs.get_by_role("button", name="Run", exact=True).click()
        expect(made.get_by_text("pinned", exact=True)).to_be_visible(timeout=PATIENCE * 1000)
        expect(runs.get_by_role("region", name="State of big")).to_contain_text("HIGH WATER AT SIX")
        made.get_by_role("button", name="Unpin").click()
        expect(node(page, "big")).not_to_contain_text("pinned")


def test_a_run_in_which_a_node_fails_is_shown_as_failed_and_the_address_for_events_is_shown(
    watched: Watched, bench: Bench
) -> None:
    flow = {
        "mode": "trigger",
        "nodes": [
            {"id": "go", "typeId": "start", "name": "go", "data": {}},
            {"id": "loud", "typeId": "transform", "name": "loud", "data": {"expression": "$.go.word.toUpperCase()"}},
        ],
        "connections": [{"sourceNodeId": "go", "targetNodeId": "loud"}],
    }
    (bench.workflows / "failing.json").write_text(json.dumps(flow, indent=1))
    page = watched.open("/editor/failing.json", "failing.json")
    runs = page.locator(".runs")
    expect(runs).to_contain_text(f"POST {bench.web.url}/api/v1/triggers/failing")
    runs.get_by_label("Payload").fill('{"word": 7}')
    runs.get_by_role("button", name="Run", exact=True).click()
    with worker(bench):
        chip = runs.get_by_role("group", name="Last runs").get_by_role("button")
        expect(chip).to_contain_text("failed", timeout=PATIENCE * 1000)
        expect(node(page, "loud").locator(".node.bad .items")).to_have_text("failed")
        expect(runs.get_by_text("not a function")).to_have_count(1)
        expect(runs.locator(".run-outputs > .trace")).to_contain_text("not a function")  # Before all outputs.
    (bench.workflows / "failing.json").unlink()


def test_a_dag_is_started_as_it_is_drawn(watched: Watched, bench: Bench) -> None:
    page = watched.open("/editor/nightly.yaml", "nightly.yaml")
    page.get_by_label("Arguments").fill('{"day": "monday"}')
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="nightly", exact=True)).to_be_visible()
    expect(page).to_have_url(re.compile(r"/runs/\d+"))
    expect(page.locator("main")).to_contain_text("monday")


def test_a_workflow_is_disabled_and_enabled_and_a_paused_schedule_stays_paused(watched: Watched, bench: Bench) -> None:
    times = [
        {"id": f"at{hours}", "typeId": "scheduled", "name": f"at{hours}", "data": {"interval": hours, "unit": "hours"}}
        for hours in (3, 4)
    ]
    flow = {
        "mode": "trigger",
        "nodes": [*times, {"id": "say", "typeId": "transform", "name": "say", "data": {"expression": "1"}}],
        "connections": [{"sourceNodeId": each["id"], "targetNodeId": "say"} for each in times],
    }
    (bench.workflows / "watch.json").write_text(json.dumps(flow, indent=1))
    with process(bench, "maintenance", "app.py"):
        page = watched.open("/schedules", "Schedules")
        page.get_by_role("button", name="Pause workflow/watch#2").click(timeout=PATIENCE * 1000)
        expect(page.get_by_role("button", name="Resume workflow/watch#2")).to_be_visible()
        switch = watched.open("/editor/watch.json", "watch.json").locator(".runs header")
        switch.get_by_role("button", name="Disable").click()
        expect(switch).to_contain_text("disabled by")
        expect(page.get_by_text("The workflow is disabled: nothing starts it.")).to_be_visible()
        watched.keep("editor-disabled")
        assert switches(watched) == {"workflow/watch": "disabled", "workflow/watch#2": "paused"}
        watched.keep("schedules-disabled")
        switch = watched.open("/editor/watch.json", "watch.json").locator(".runs header")
        switch.get_by_role("button", name="Enable").click()
        expect(switch.get_by_role("button", name="Disable")).to_be_visible()
        expect(switch).to_contain_text("every 3 hours")
        assert switches(watched) == {"workflow/watch": "active", "workflow/watch#2": "paused"}
    (bench.workflows / "watch.json").unlink()


def test_a_workflow_file_that_is_a_pipeline_is_disabled_and_enabled(watched: Watched) -> None:
    page = watched.open("/editor/blog.json", "blog.json")
    switch = page.locator(".runs header")
    switch.get_by_role("button", name="Disable").click()
    expect(switch).to_contain_text("disabled by")
    watched.open("/pipelines", "Pipelines")
    expect(page.locator("main")).to_contain_text("paused by")
    watched.open("/editor/blog.json", "blog.json")
    switch.get_by_role("button", name="Enable").click()
    expect(switch.get_by_role("button", name="Disable")).to_be_visible()


def switches(watched: Watched) -> dict[str, str]:
    """The schedules of the list, and the state of each."""
    page = watched.open("/schedules", "Schedules")
    rows = page.get_by_role("region", name="Schedules").locator("tbody tr")
    expect(rows).to_have_count(2)
    cells = [row.locator("td").all_inner_texts() for row in rows.all()]
    return {each[0].strip(): each[1].strip() for each in cells}


def worker(bench: Bench) -> contextlib.AbstractContextManager[None]:
    """Run jobs of the application for the duration of the block."""
    return process(bench, "worker", "app.py", "--only", "jobs")


@contextlib.contextmanager
def process(bench: Bench, *command: str) -> Iterator[None]:
    """Run a role of the application for the duration of the block."""
    options = [*command, "--database-url", bench.database_url]
    process = subprocess.Popen([sys.executable, "-m", "tidemill.cli.main", *options], cwd=bench.folder)
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)
