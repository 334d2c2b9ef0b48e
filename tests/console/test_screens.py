"""The console in a real Chromium: the main task of each screen, while real work runs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Route, expect

from tests.support.console import Harbour, Watched, harbour, wait_until, watched_page


@pytest.fixture(scope="module")
def shop(module_database_url: str, browser: Browser) -> Iterator[Harbour]:  # The database has a loop of its own.
    with harbour(module_database_url) as running:
        yield running


@pytest.fixture
def console(browser: Browser, shop: Harbour) -> Iterator[Watched]:
    with watched_page(browser, shop.url) as watched:
        yield watched


def test_a_job_appears_in_an_open_list_by_itself(shop: Harbour, console: Watched) -> None:
    page = console.open("/jobs?task=send", "Jobs")
    number = shop.enqueue("send", to="the lighthouse")
    expect(page.get_by_role("link", name=str(number), exact=True)).to_be_visible()


def test_what_happens_before_a_page_hears_of_changes_is_shown_as_well(
    browser: Browser, shop: Harbour, console: Watched
) -> None:
    page, held = console.page, list[Route]()
    page.route("**/api/v1/changes*", lambda route: held.append(route))
    with watched_page(browser, shop.url) as other:
        expect(other.open("/jobs", "Jobs").locator(".live.ok")).to_be_visible()
        with page.expect_response(lambda answer: "/api/v1/jobs" in answer.url):
            console.open("/jobs?task=send", "Jobs")
        number = shop.enqueue("send", to="the early bird")
        shop.job_ends(number)
        link = {"name": str(number), "exact": True}
        expect(other.page.get_by_role("link", **link)).to_be_visible()  # The change was broadcast.
        expect(page.get_by_role("link", **link)).to_have_count(0)
        held[0].continue_()
        expect(page.get_by_role("link", **link)).to_be_visible()


def test_failed_jobs_that_match_are_counted_first_and_then_retried(shop: Harbour, console: Watched) -> None:
    for number in range(3):
        shop.job_ends(shop.enqueue("broken", number=100 + number))
    under_way = "/jobs?tag=flaky&state=ready&state=running"
    wait_until(lambda: not shop.api(under_way)["items"], "what other tests have begun has ended")
    page = console.open("/jobs", "Jobs")
    page.get_by_role("button", name="failed", exact=True).click()
    page.get_by_label("Tag").fill("flaky")
    expect(page).to_have_url(re.compile(r"state=failed.*tag=flaky"))
    before = len(shop.api("/jobs?state=failed&tag=flaky")["items"])
    page.get_by_role("button", name="Retry all matching").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(f"{before} jobs", exact=True)).to_be_visible()
    console.keep("jobs-bulk")
    dialog.get_by_role("button", name=f"Retry {before} jobs").click()
    expect(page.get_by_text(re.compile(r"\d+ new jobs? enqueued"))).to_be_visible()
    wait_until(lambda: len(shop.api("/jobs?state=failed&tag=flaky")["items"]) == 2 * before, "all have failed again")


def test_a_failed_job_tells_why_and_is_run_again(shop: Harbour, console: Watched) -> None:
    number = shop.enqueue("broken", number=9)
    shop.job_ends(number)
    page = console.open(f"/jobs/{number}", "broken")
    expect(page.get_by_text("Traceback (most recent call last)").first).to_be_visible()
    expect(page.get_by_text("attempt 2", exact=True).first).to_be_visible()
    log = page.get_by_role("log")
    expect(log).to_contain_text("looks at the label number=9")
    page.get_by_role("button", name="attempt 1").click()
    expect(page.get_by_role("log", name="Log of attempt 1")).to_contain_text("looks at the label")
    console.keep("job")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page).not_to_have_url(re.compile(rf"/jobs/{number}$"))
    expect(page.get_by_text(f"to repeat job {number}")).to_be_visible()


def test_a_job_is_enqueued_and_cancelled_by_hand(shop: Harbour, console: Watched, tmp_path: Path) -> None:
    page = console.open("/jobs", "Jobs")
    page.get_by_role("button", name="Enqueue a job").click()
    page.get_by_role("textbox", name="Task The name of a task").fill("until")
    page.get_by_label("Arguments").fill('{"file": ')
    expect(page.get_by_text("Not valid JSON")).to_be_visible()
    page.get_by_label("Arguments").fill(f'{{"file": "{tmp_path / "never"}"}}')
    page.get_by_role("button", name="Enqueue", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="until")).to_be_visible()
    expect(page.get_by_text("waits for never").first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".head .state", has_text="cancelled")).to_be_visible()


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


def test_jobs_and_runs_are_found_by_argument_error_text_and_time(shop: Harbour, console: Watched) -> None:
    wanted = shop.enqueue("broken", number=4711)
    other = shop.enqueue("broken", number=4712)
    shop.job_ends(wanted)
    shop.job_ends(other)
    page = console.open("/jobs?task=broken", "Jobs")
    expect(page.get_by_role("link", name=str(other), exact=True)).to_be_visible()
    page.get_by_role("searchbox", name="Argument").fill("number=4711")
    expect(page.get_by_role("link", name=str(other), exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name=str(wanted), exact=True)).to_be_visible()
    page.get_by_role("searchbox", name="Argument").fill("")
    page.get_by_role("searchbox", name="Error text").fill("PARCEL 4712 has")
    expect(page.get_by_role("link", name=str(wanted), exact=True)).to_have_count(0)
    expect(page.get_by_role("link", name=str(other), exact=True)).to_be_visible()
    page.get_by_label("Created").select_option("Created in the last 1 hour")
    expect(page).to_have_url(re.compile("within=1h"))
    expect(page.get_by_role("link", name=str(other), exact=True)).to_be_visible()
    page.get_by_label("Created", exact=True).select_option("Created between …")
    page.get_by_label("Created before").fill("2020-01-01T00:00")
    expect(page.get_by_text("No jobs match these filters")).to_be_visible()
    run = shop.start("Article", topic="springs")
    console.open("/runs?arg=topic=springs", "Runs")
    expect(page.locator("main tbody tr")).to_have_count(1)
    page.get_by_role("button", name="Cancel all matching").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel 1 runs").click()
    shop.run_is(run, "cancelled")


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


def test_tasks_and_queues_have_a_page_with_their_history(shop: Harbour, console: Watched) -> None:
    shop.job_ends(shop.enqueue("broken", number=21))
    wait_until(lambda: "broken" in [each["name"] for each in shop.api("/history/task")["items"]], "it is counted")
    page = console.open("/tasks?order=failing", "Tasks")
    page.get_by_role("link", name="broken", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="broken")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Rate over time"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Duration over time"))).to_be_visible()
    expect(page.get_by_role("region", name="Newest failures")).to_contain_text("parcel 21 has no address")
    console.keep("task")
    queue = shop.api("/jobs?task=broken")["items"][0]["queue"]
    console.open("/queues", "Queues")
    page.get_by_role("link", name=queue, exact=True).click()
    expect(page.get_by_role("heading", level=1, name=queue)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Wait over time"))).to_be_visible()
    page.get_by_role("button", name="30 days").click()
    expect(page.get_by_role("img", name=re.compile("^Rate over time"))).to_be_visible()


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
    page.locator(".react-flow__node", has_text="bad").click()
    expect(page).to_have_url(re.compile("step=bad"))
    panel = page.locator(".panel", has=page.get_by_role("tablist"))
    expect(panel.get_by_text("parcel 0 has no address").first).to_be_visible()
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
    expect(page.get_by_role("link", name=f"r{number}", exact=True)).to_be_visible()
    fork = int(page.url.rsplit("/", 1)[1].partition("?")[0])
    assert shop.api(f"/runs/{fork}")["forked_from"] == number


def test_a_queue_is_paused_limited_and_resumed(shop: Harbour, console: Watched) -> None:
    page = console.open("/queues", "Queues")
    expect(page.get_by_role("row", name=re.compile("^mail "))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^monitor:"))).to_have_count(0)
    page.get_by_role("button", name="Show internal queues").click()
    expect(page.get_by_role("row", name=re.compile("^monitor:ships"))).to_be_visible()
    row = page.get_by_role("row", name=re.compile("^mail "))
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused")).to_be_visible()
    held = ("paused", "partly_paused")
    wait_until(lambda: any(each["status"] in held for each in shop.api("/workers")["items"]), "a worker has heard it")
    waiting = shop.enqueue("send", to="whoever waits")
    expect(row.get_by_role("cell").nth(2)).to_have_text("1")
    row.get_by_role("button", name="Limit").click()
    page.get_by_label("Maximum start rate").fill("50/s")
    page.get_by_role("button", name="Set limit").click()
    expect(row.get_by_text("50/s")).to_be_visible()
    console.keep("queues")
    row.get_by_role("button", name="Resume").click()
    assert shop.job_ends(waiting)["state"] == "succeeded"


def test_a_batch_is_watched_closed_and_its_jobs_are_found(shop: Harbour, console: Watched) -> None:
    batch = shop.api(
        "/batches", {"task": "send", "each": [{"to": "ann"}, {"to": "bob"}], "name": "notes", "keep_open": True}
    )
    page = console.open("/batches", "Batches")
    row = page.get_by_role("row", name=re.compile("notes"))
    expect(row.get_by_text("open", exact=True)).to_be_visible()
    row.get_by_role("link", name=f"b{batch['id']}").click()
    expect(page.get_by_text("It is open for more jobs")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_text("Of 2 jobs, 2 succeeded.")).to_be_visible()
    console.keep("batch")
    page.get_by_role("link", name="2 jobs").click()
    expect(page.get_by_role("button", name=f"Batch b{batch['id']} ✕")).to_be_visible()


def test_a_schedule_is_run_now_paused_and_resumed(shop: Harbour, console: Watched) -> None:
    page = console.open("/schedules", "Schedules")
    row = page.get_by_role("row", name=re.compile("count_ships"))
    row.get_by_role("button", name="Run now").click()
    expect(page.get_by_text(re.compile(r"Enqueued job \d+"))).to_be_visible()
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused")).to_be_visible()
    console.keep("schedules")
    row.get_by_role("button", name="Resume").click()
    expect(row.get_by_text("active", exact=True)).to_be_visible()


def test_the_workers_of_a_host_are_drained_and_resumed_and_its_charts_are_drawn(
    shop: Harbour, console: Watched
) -> None:
    host = shop.api("/workers")["items"][0]["host"]
    page = console.open("/workers", "Workers and hosts")
    page.get_by_role("button", name="Drain").click()
    expect(page.get_by_text(f"{host}/*=drain").first).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text(f"{host}/*=drain")).to_have_count(0)
    wait_until(lambda: shop.api("/hosts")["items"], "the host is sampled")
    page.reload()
    page.locator(".hosts a").first.click()
    expect(page.get_by_role("img", name=re.compile("^CPU over time"))).to_be_visible()
    console.keep("host")


def test_a_source_is_weighed_while_it_runs_and_a_dead_letter_is_replayed(shop: Harbour, console: Watched) -> None:
    page = console.open("/streams", "Streams")
    row = page.get_by_role("row", name=re.compile("^box"))
    slider = row.get_by_role("slider", name="Weight of box")
    slider.fill("6")
    slider.blur()
    expect(page.get_by_text("Set the weight of source box of letters to 5.")).to_be_visible()
    running = lambda: shop.api("/streams")["items"][0]["dispatchers"]  # noqa: E731
    wait_until(lambda: any(each["sources"][0]["weight"] == 5 for each in running()), "the dispatcher weighs it so")
    shop.write("letters.jsonl", bad=True, number=7)
    expect(page.get_by_text("no address").first).to_be_visible()
    console.keep("streams")
    page.get_by_role("link", name=re.compile("^Explain d")).first.click()
    expect(page.get_by_role("heading", name=re.compile("^Message 0:"))).to_be_visible()
    expect(page.get_by_label("Failed attempts").get_by_text(re.compile("attempt 2"))).to_be_visible()
    expect(page.get_by_label("Traceback of attempt 2")).to_contain_text('raise ValueError("no address")')
    console.keep("streams-dead-letter")
    place = page.get_by_role("heading", name=re.compile("^Message 0:")).inner_text().removeprefix("Message ")
    page = console.open("/streams", "Streams")
    page.get_by_label("Message", exact=True).fill(f"letters/box:{place}")
    page.get_by_role("button", name="Explain message").click()
    expect(page.get_by_role("heading", name=f"Message {place}")).to_be_visible()
    expect(page.get_by_text("gave up this message of source box after 2 attempts")).to_be_visible()
    console.keep("streams-message")
    page = console.open("/streams", "Streams")
    shop.write("letters.jsonl", abroad=True, number=8)
    ferry = page.get_by_role("row", name=re.compile("^ferry"))
    expect(ferry.get_by_text("Cannot be reached")).to_be_visible()
    console.keep("streams-sink")
    ferry.get_by_role("button", name="Disable ferry").click()
    expect(page.get_by_text("Disabled ferry of letters.")).to_be_visible()
    (shop.folder / "forgiven").touch()
    page.get_by_role("button", name="Replay all of letters").click()
    expect(page.get_by_text("No dead letters")).to_be_visible()
    row.get_by_role("button", name="Limit box").click()
    page.get_by_label("Maximum messages per second").fill("25")
    page.get_by_role("button", name="Set limit").click()
    expect(row.get_by_text("25/s")).to_be_visible()
    page.get_by_role("button", name="Send live request").click()
    page.get_by_label("Eligibilities").fill("sort")
    page.get_by_role("dialog").locator("textarea").fill('{"number": 12}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("shelf: 12")
    console.keep("streams-live")


def test_an_alert_is_told_acknowledged_and_silenced_where_it_is_seen(shop: Harbour, console: Watched) -> None:
    page = console.open("/monitors", "Monitors")
    shop.write("readings.jsonl", id="deep-1", at=time.time(), ship="Grace", draught=11)
    row = page.get_by_role("row", name=re.compile("^Grace"))
    expect(row.get_by_text("open", exact=True)).to_be_visible(timeout=60_000)
    row.get_by_role("button", name="History").click()
    history = page.get_by_role("dialog").get_by_role("listitem")
    expect(history.first).to_contain_text("deep of Grace")
    expect(history.filter(has_text="Condition:")).to_contain_text("s.deep_since is not None")
    expect(history.last).to_contain_text("opened by monitor")
    page.get_by_role("button", name="Close").click()
    row.get_by_role("button", name="Acknowledge").click()
    expect(row.get_by_text("acknowledged by local")).to_be_visible()
    row.get_by_role("button", name="Silence").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("4 hours").check()
    dialog.get_by_label("Comment").fill("in the dock")
    assert console.seen_by_all("monitors-silence") == []
    dialog.get_by_role("button", name="Silence", exact=True).click()
    expect(page.get_by_text("Silenced deep of Grace for 4 hours.")).to_be_visible()
    (silence,) = shop.api("/silences")["items"]
    assert silence["comment"] == "in the dock"
    page.get_by_role("button", name="End silence").click()
    expect(page.get_by_text(re.compile(r"Ended silence \d+"))).to_be_visible()
    page.get_by_role("button", name="Entities").click()
    entity = page.get_by_role("button", name=re.compile("^Grace"))
    expect(entity.get_by_role("img", name="1 event in the last hour")).to_be_visible()
    shop.write("readings.jsonl", id="nameless", at=time.time(), draught=3)
    problems = page.get_by_role("list", name="Problems of ships").get_by_role("listitem")
    expect(problems).to_contain_text("entity: event nameless was skipped: KeyError: 'ship'")
    entity.click()
    console.keep("monitors")
    page.get_by_role("button", name="Why no alert?").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("listitem").first).to_contain_text("and acknowledged; no other opens meanwhile")
    expect(dialog).to_contain_text("Grace was last checked at")
    assert console.seen_by_all("monitors-why-not") == []
    page.get_by_role("button", name="Close").click()
    entity.click()
    page.get_by_role("button", name="Backtest").click()
    page.get_by_label("Period").fill("1h")
    page.get_by_role("button", name="Run backtest").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 alert would have opened: deep 1")
    expect(page.locator(".backtest .lane", has_text="Grace").locator(".track i")).to_have_count(1)
    console.keep("monitors-backtest")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Add entities").click()
    page.get_by_role("textbox", name="Entities").fill("Ada\nMary")
    page.get_by_role("button", name="Add 2 entities").click()
    expect(page.get_by_role("button", name=re.compile("^Mary"))).to_be_visible()
    page.get_by_role("button", name=re.compile("^Mary")).click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("button", name=re.compile("^Mary"))).to_have_count(0)
    shop.write("readings.jsonl", id="light-1", at=time.time(), ship="Grace", draught=4)
    expect(row.get_by_text("resolved")).to_be_visible(timeout=60_000)


def test_a_token_is_shown_once_and_revoked_and_all_that_is_in_the_audit_log(console: Watched) -> None:
    page = console.open("/accounts", "Accounts")
    page.get_by_role("button", name="Create token").click()
    page.get_by_label("Name").fill("night watch")
    page.get_by_label("Role").select_option("operator")
    page.get_by_role("button", name="Create", exact=True).click()
    secret = page.locator(".secret").inner_text()
    assert secret.startswith("tm_")
    page.get_by_role("button", name="Done").click()
    row = page.get_by_role("row", name=re.compile("night watch"))
    expect(row.get_by_text("valid")).to_be_visible()
    assert secret not in page.content()
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row.get_by_text("revoked")).to_be_visible()
    console.keep("accounts")
    console.open("/audit?action=token", "Audit log")
    expect(page.get_by_role("cell", name="token.create").first).to_be_visible()
    expect(page.get_by_role("cell", name="token.revoke").first).to_be_visible()


def test_a_credential_is_stored_replaced_and_deleted_and_its_value_is_never_shown(
    shop: Harbour, console: Watched
) -> None:
    page = console.open("/accounts", "Accounts")
    page.get_by_role("button", name="Set credential").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("news")
    dialog.get_by_label("Value of field 1").fill("hush-one")
    assert dialog.get_by_label("Value of field 1").get_attribute("type") == "password"
    dialog.get_by_role("button", name="Add field").click()
    dialog.get_by_label("Name of field 2").fill("user")
    dialog.get_by_label("Value of field 2").fill("hush-two")
    dialog.get_by_role("button", name="Store").click()
    expect(page.get_by_text("Stored credential news.")).to_be_visible()
    row = page.get_by_role("region", name="Credentials").get_by_role("row", name=re.compile("^news"))
    expect(row).to_contain_text("token, user")
    console.keep("credentials")
    row.get_by_role("button", name="Replace credential news").click()
    expect(dialog.get_by_label("Name", exact=True)).to_be_disabled()
    expect(dialog.get_by_label("Value of field 1")).to_have_value("")
    dialog.get_by_label("Value of field 1").fill("hush-three")
    dialog.get_by_role("button", name="Store").click()
    expect(dialog).to_have_count(0)
    expect(row).not_to_contain_text("user")
    told = json.dumps(shop.api("/credentials")) + json.dumps(shop.api("/audit")) + page.content()
    assert "news" in told
    assert "hush" not in told
    row.get_by_role("button", name="Delete credential news").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete credential").click()
    expect(page.get_by_text("Deleted credential news.")).to_be_visible()
    expect(page.get_by_text("No credentials", exact=True)).to_be_visible()


def test_how_long_data_is_stored_is_shown_and_set(shop: Harbour, console: Watched) -> None:
    page = console.open("/settings", "Settings")
    days = page.get_by_label("Days to store: Finished runs")
    expect(days).to_have_attribute("placeholder", "30")
    days.fill("0")
    expect(page.get_by_role("button", name="Save", exact=True)).to_be_disabled()
    days.fill("7")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("Older data is deleted with the next maintenance run")).to_be_visible()
    kept = shop.api("/retention")
    assert (kept["runs"]["days"], kept["jobs"]["days"], kept["set_by"]) == (7, 30, "local")
    console.open("/audit?action=retention", "Audit log")
    expect(page.get_by_role("cell", name="retention.set").first).to_be_visible()


def test_a_persons_data_is_counted_then_deleted_and_reported(shop: Harbour, console: Watched) -> None:
    number = shop.api("/jobs", {"task": "send", "args": {"to": "x"}, "tags": ["person:17"]})["id"]
    shop.job_ends(number)
    page = console.open("/settings", "Settings")
    page.get_by_label("What to delete").select_option("tag")
    page.get_by_label("Tag").fill("person:17")
    page.get_by_role("button", name="Count").click()
    jobs = page.get_by_role("region", name="What would be deleted").get_by_role("row", name=re.compile("^jobs"))
    expect(jobs).to_contain_text("1")
    assert shop.api(f"/jobs/{number}")["state"] == "succeeded", "counting deletes nothing"
    page.get_by_role("button", name=re.compile(r"Delete \d+ rows?")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("person:17")).to_be_visible()
    console.keep("forget")
    dialog.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("region", name="What was deleted")).to_be_visible()
    assert not [each for each in shop.api("/jobs?tag=person:17")["items"] if each["id"] == number]
    assert console.seen_by_all("settings-forgotten") == []
    console.open("/audit?action=data.forget", "Audit log")
    expect(page.get_by_role("cell", name="data.forget").first).to_be_visible()


def test_a_failed_job_is_retried_with_other_arguments(shop: Harbour, console: Watched) -> None:
    number = shop.enqueue("broken", number=12)
    shop.job_ends(number)
    page = console.open(f"/jobs/{number}", "broken")
    page.get_by_role("button", name="Edit and retry").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Arguments").fill('{"number": 13}')
    assert console.seen_by_all("job-edit") == []
    dialog.get_by_role("button", name="Retry").click()
    expect(page).not_to_have_url(re.compile(rf"/jobs/{number}$"))
    again = shop.job_ends(int(page.url.rpartition("/")[2]))
    assert (again["args"], again["origin"]["retry_of"]) == ({"number": 13}, number)


def test_a_schedule_is_made_and_deleted_in_the_console(shop: Harbour, console: Watched) -> None:
    page = console.open("/schedules", "Schedules")
    page.get_by_role("button", name="New schedule").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("textbox", name="Name", exact=True).fill("own one")
    dialog.get_by_label("Starts").fill("send")
    dialog.get_by_label("Arguments").fill('{"to": "a"}')
    dialog.get_by_label("Interval").fill("1h")
    assert console.seen_by_all("schedule-new") == []
    dialog.get_by_role("button", name="Create").click()
    remove = page.get_by_role("button", name="Delete own one")
    expect(remove).to_be_visible()
    assert console.seen_by_all("schedules-own") == []
    remove.click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(remove).to_have_count(0)
    assert "own one" not in [each["name"] for each in shop.api("/schedules")["items"]]


def test_everything_is_found_and_reached_by_keyboard(shop: Harbour, console: Watched) -> None:
    number = shop.enqueue("send", to="by key")
    page = console.open("/", "harbour")
    page.keyboard.press("Control+k")
    page.get_by_role("combobox").fill(str(number))
    expect(page.get_by_role("option", name=re.compile(f"job {number} send"))).to_be_visible()
    console.keep("search")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(rf"/jobs/{number}$"))
    page.keyboard.press("g")
    page.keyboard.press("r")
    expect(page.get_by_role("heading", level=1, name="Runs")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_role("link", name=str(number), exact=True)).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/jobs/\d+$"))


def test_home_says_what_is_failing_and_every_figure_leads_to_its_list(shop: Harbour, console: Watched) -> None:
    # The last test, because a chart has two points only after twenty seconds.
    shop.job_ends(shop.enqueue("broken", number=4))
    page = console.open("/", "harbour")
    expect(page.get_by_text("parcel 4 has no address").first).to_be_visible()
    console.keep("home")
    expect(page.get_by_role("heading", name="Throughput")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Throughput over time"))).to_be_visible()
    tiles = page.locator("a.tile")
    assert {tile.get_attribute("href") for tile in tiles.all()} >= {"/input", "/workers", "/runs?state=running"}
    page.locator("a.tile", has_text="Workers").click()
    expect(page.get_by_role("heading", level=1, name="Workers and hosts")).to_be_visible()
