"""The screens of runs, flows, dags and human input in a real Chromium, while real work runs."""

from __future__ import annotations

import re

from playwright.sync_api import Locator, expect

from tests.support.console import Harbour, Watched


def test_runs_are_filtered_in_the_address_and_cancelled_after_a_preview(shop: Harbour, console: Watched) -> None:
    runs = [shop.start("Article", topic=f"tide {number}") for number in range(3)]
    page = console.open("/runs", "Runs")
    page.get_by_role("button", name="running", exact=True).click()
    page.get_by_role("button", name="flow", exact=True).click()
    expect(page).to_have_url(re.compile(r"state=running.*shape=flow"))
    page.get_by_role("checkbox", name=f"Select run {runs[0]}").check()
    page.get_by_role("toolbar").get_by_role("button", name="Cancel").click()
    shop.run_is(runs[0], "cancelled")
    expect(page.get_by_role("link", name=f"r{runs[0]}", exact=True)).to_have_count(0)
    page.get_by_role("button", name="Cancel all matching").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile(r"Cancel \d+ runs")).click()
    for number in runs[1:]:
        shop.run_is(number, "cancelled")
    expect(page.get_by_text("No runs match these filters")).to_be_visible()
    console.keep("runs")


def test_a_run_is_started_by_a_form_from_the_fields_of_its_start(shop: Harbour, console: Watched) -> None:
    page = console.open("/runs", "Runs")
    page.get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Flow or dag").select_option("Article")
    dialog.get_by_label("topic").fill("slack water")
    assert console.seen_by_all("run-start") == []
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(page).to_have_url(re.compile(r"/runs/\d+"))
    number = int(page.url.rpartition("/")[2])
    assert "slack water" in str(shop.api(f"/runs/{number}"))
    shop.api("/runs/cancel", {"ids": [number]})


def test_a_run_is_started_with_the_options_that_are_folded_away(shop: Harbour, console: Watched) -> None:
    page = console.open("/runs", "Runs")
    page.get_by_role("button", name="Start a run").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Flow or dag").select_option("Article")
    dialog.get_by_label("topic").fill("spring tide")
    dialog.get_by_text("More options").click()
    dialog.get_by_label("Not before").fill("2090-01-31T12:00")
    expect(dialog.get_by_label("Delay")).to_be_disabled()
    for label, text in {"Priority": "8", "Tags": "draft", "Unique key": "spring"}.items():
        dialog.get_by_label(label).fill(text)
    assert console.seen_by_all("run-start-options") == []
    dialog.get_by_role("button", name="Start", exact=True).click()
    expect(page).to_have_url(re.compile(r"/runs/\d+"))
    number = int(page.url.rpartition("/")[2])
    run = shop.api(f"/runs/{number}")
    assert (run["priority"], run["tags"], run["key"]) == (8, ["draft"], "spring")
    assert run["start_at"].startswith(("2090-01-30", "2090-01-31", "2090-02-01"))
    shop.api("/runs/cancel", {"ids": [number]})


def test_only_the_runs_that_the_filter_shows_are_cancelled(shop: Harbour, console: Watched) -> None:
    run = shop.start("Article", topic="neaps")
    shop.asks(run)
    page = console.open("/runs?state=succeeded", "Runs")
    page.get_by_role("button", name="Cancel all matching").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("only runs that are running or need attention")
    assert shop.api(f"/runs/{run}")["state"] == "running"
    shop.api("/runs/cancel", {"ids": [run]})
    console.wrong = [each for each in console.wrong if "400" not in each and "422" not in each]


def test_a_filter_of_runs_is_saved_by_name(console: Watched) -> None:
    page = console.open("/runs?state=failed", "Runs")
    page.get_by_role("button", name="Save this filter").click()
    page.get_by_label("Name of the filter").fill("trouble")
    page.get_by_label("Name of the filter").press("Enter")
    console.open("/runs", "Runs")
    page.get_by_role("link", name="trouble").click()
    expect(page).to_have_url(re.compile("state=failed"))


def test_a_person_answers_with_a_form_that_the_schema_has_made(shop: Harbour, console: Watched) -> None:
    number = shop.start("release")
    shop.asks(number)
    page = console.open("/input", "Human input")
    card = page.locator(".panel", has=page.get_by_role("link", name=f"r{number}", exact=True))
    expect(card.get_by_text("Who signs for 7 tons?")).to_be_visible()
    card.get_by_label("Your name").fill("Ada")
    card.get_by_label("Copies").fill("12")
    card.get_by_label("Kind").select_option("paper")
    card.get_by_label("Urgent").check()
    console.keep("input")
    card.get_by_role("button", name="Submit").click()
    assert shop.api(f"/inputs?run={number}")["items"], "twelve copies are too many, and the browser says so"
    card.get_by_label("Copies").fill("2")
    card.get_by_role("button", name="Submit").click()
    expect(page.get_by_text(f"Answer sent to run r{number}.")).to_be_visible()
    assert shop.run_is(number, "succeeded")["result"] == {"ship": {"sent": "Ada"}}


def test_what_flows_ask_is_answered_among_all_other_questions(shop: Harbour, console: Watched) -> None:
    berth, article = shop.start("Berth", ship="Grace"), shop.start("Article", topic="quays")
    page = console.open("/input", "Human input")

    def card(number: int) -> Locator:
        return page.locator(".panel", has=page.get_by_role("link", name=f"r{number}", exact=True))

    expect(card(berth).get_by_role("heading", name="At which quay does Grace lie?")).to_be_visible()
    card(berth).get_by_label("Quay").fill("7")
    card(berth).get_by_label("Words").fill("gently")
    card(berth).get_by_role("radio", name="starboard").check()
    console.keep("input-flow")
    card(berth).get_by_role("button", name="Submit").click()
    expect(page.get_by_text(f"Answer sent to run r{berth}.")).to_be_visible()
    expect(card(berth)).to_have_count(0)
    assert shop.run_is(berth, "succeeded")["result"] == {"quay": 7, "words": "gently", "side": "starboard"}

    expect(card(article).get_by_role("heading", name="approve")).to_be_visible()
    card(article).get_by_label("Answer").fill('{"response": "print it"}')
    card(article).get_by_role("button", name="Submit").click()
    expect(card(article)).to_have_count(0)
    assert shop.run_is(article, "succeeded")["result"]["said"] == "print it"


def test_a_dag_is_looked_at_step_by_step_and_at_any_tick_and_repeated(shop: Harbour, console: Watched) -> None:
    number = shop.start("doomed")
    run = shop.run_is(number, "failed")
    page = console.open(f"/runs/{number}", "doomed")
    panel = page.locator(".panel", has=page.get_by_role("tablist"))
    expect(panel.get_by_text("parcel 0 has no address").first).to_be_visible()  # What failed is shown unasked.
    page.locator(".react-flow__node", has_text="first").click()
    expect(panel.get_by_role("heading", name="first")).to_be_visible()
    page.locator(".react-flow__node", has_text="bad").click()
    expect(page).to_have_url(re.compile("step=bad"))
    panel.get_by_role("tab", name="log").click()
    expect(panel.get_by_role("log")).to_contain_text("looks at the label")
    panel.get_by_role("tab", name="input").click()
    expect(panel.get_by_text("{}")).to_be_visible()
    bars = page.get_by_role("button", name=re.compile("^bad")).locator(".track i.bad")
    expect(bars).to_have_count(2)
    console.keep("run-dag")
    slider = page.get_by_role("slider", name="Tick")
    expect(slider).to_have_attribute("max", str(run["ticks"]))
    slider.fill("1")
    expect(page.locator(".then")).to_contain_text("State after tick 1")
    expect(page.locator(".react-flow__node", has_text="bad")).to_contain_text("pending")
    timeline = page.get_by_role("group", name="Timeline")
    expect(timeline.locator(".track i.ok, .track i.bad")).to_have_count(0)  # Nothing had ended at that tick.
    page.get_by_role("button", name="Show now").click()
    expect(timeline.locator(".track i.ok")).not_to_have_count(0)
    expect(page.locator(".react-flow__node", has_text="bad")).to_contain_text("failed")
    page.get_by_role("button", name="Run again from here").click()
    page.get_by_role("dialog").get_by_label("Changed arguments").fill('{"number": 5}')
    page.get_by_role("dialog").get_by_role("button", name="Run again", exact=True).click()
    expect(page.get_by_text(re.compile(rf"Started run r\d+, which repeats r{number}"))).to_be_visible()
    expect(page.get_by_text("parcel 5 has no address").first).to_be_visible()


def test_a_node_of_a_dag_is_cancelled_with_what_follows_from_it(shop: Harbour, console: Watched) -> None:
    number = shop.start("release")
    asking = shop.asks(number)["node"]
    page = console.open(f"/runs/{number}?step={asking}", "release")
    page.get_by_role("button", name="Cancel node").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Reason").fill("not this week")
    console.keep("run-cancel-node")
    assert console.seen_by_all("run-cancel-node") == []
    dialog.get_by_role("button", name="Cancel node").click()
    expect(page.get_by_text(f"Cancelled in r{number}: {asking}, ship.")).to_be_visible()
    expect(page.locator(".panel", has=page.get_by_role("tablist")).get_by_text("not this week").first).to_be_visible()
    assert shop.run_is(number, "cancelled")["note"].endswith("not this week")


def test_the_items_of_a_map_are_listed_with_their_arguments(shop: Harbour, console: Watched) -> None:
    number = shop.start("fleet")
    shop.run_is(number, "succeeded")
    page = console.open(f"/runs/{number}?step=weigh", "fleet")
    items = page.get_by_role("region", name="Items")
    expect(items.get_by_role("row")).to_have_count(4)
    for value in (3, 5, 8):
        expect(items.get_by_text(f"value={value}", exact=True)).to_be_visible()
    page.get_by_role("button", name=re.compile("^▸ weigh")).click()
    expect(page.locator(".timeline").get_by_text("value=5")).to_be_visible()
    console.keep("run-map")
    items.get_by_role("link").first.click()
    expect(page).to_have_url(re.compile(r"/jobs/\d+"))


def test_parents_children_and_forks_are_drawn_and_opened_from_the_graph(shop: Harbour, console: Watched) -> None:
    number = shop.start("Convoy", ships=["Ada", "Ben"])
    shop.run_is(number, "succeeded")
    many = shop.start("Convoy", ships=[f"ship {each}" for each in range(9)])
    child = shop.api(f"/runs?parent={number}")["items"][0]["id"]
    page = console.open(f"/runs/{number}", "Convoy")
    drawn = page.get_by_label("Graph of the run").get_by_role("group")
    expect(drawn.filter(has_text="Pilot")).to_have_count(2)
    edge = page.locator(f"[data-id='enter → run {child}']")
    expect(edge).to_have_count(1)
    console.keep("run-children")
    drawn.filter(has_text=f"r{child} Pilot").click()
    expect(page.get_by_role("heading", level=1, name="Pilot")).to_be_visible()
    parent = drawn.filter(has_text=f"r{number} Convoy")
    expect(parent).to_contain_text("parent")
    parent.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="Convoy")).to_be_visible()
    shop.run_is(many, "succeeded")
    page = console.open(f"/runs/{many}", "Convoy")
    drawn.filter(has_text="9 runs of Pilot").click()
    expect(page.get_by_text(f"Children of r{many}")).to_be_visible()
    fork = shop.api(f"/runs/{number}/fork", {"at": 1})["id"]
    page = console.open(f"/runs/{number}", "Convoy")
    expect(drawn.filter(has_text=f"r{fork} Convoy")).to_contain_text("fork")
    drawn.filter(has_text=f"r{fork} Convoy").click()
    expect(drawn.filter(has_text=f"r{number} Convoy")).to_contain_text("forked here")


def test_a_flow_is_followed_given_its_event_and_forked(shop: Harbour, console: Watched) -> None:
    number = shop.start("Article", topic="tides")
    page = console.open(f"/runs/r{number}", "Article")  # As lists and the command line name it.
    expect(page.locator(".head").get_by_text("waiting for input")).to_be_visible()
    expect(page.get_by_text("Step approve is waiting for HumanResponseEvent", exact=False)).to_be_visible()
    page.get_by_role("slider", name="Tick").fill("1")
    expect(page.locator(".react-flow__node", has_text="approve")).to_contain_text("pending")
    page.get_by_role("button", name="Show now").click()
    page.get_by_role("button", name="Send an event").click()
    page.get_by_role("dialog").get_by_label("Fields").fill('{"response": "print it"}')
    page.get_by_role("dialog").get_by_role("button", name="Send", exact=True).click()
    expect(page.locator(".head .state", has_text="succeeded")).to_be_visible()
    page.get_by_role("button", name=re.compile("^write")).click()
    expect(page.get_by_text('"About tides"').first).to_be_visible()
    page.get_by_role("slider", name="Tick").fill("2")
    expect(page.get_by_role("heading", name="State after tick 2")).to_be_visible()
    console.keep("run-flow")
    page.get_by_role("button", name="Fork at tick 2").click()
    page.get_by_role("dialog").get_by_role("button", name="Fork", exact=True).click()
    expect(page).not_to_have_url(re.compile(rf"/runs/r?{number}\b"))
    expect(page.locator("dl").get_by_role("link", name=f"r{number}", exact=True)).to_be_visible()
    fork = int(page.url.rsplit("/", 1)[1].partition("?")[0])
    assert shop.api(f"/runs/{fork}")["forked_from"] == number
