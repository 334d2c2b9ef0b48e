"""The screens of jobs, batches, queues, schedules and workers in a real Chromium, while real work runs."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, Route, expect

from tests.support.console import Harbour, Watched, wait_until, watched_page


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
    failed = shop.api("/jobs?state=failed&tag=flaky")["items"]
    before = shop.api("/jobs/retry/preview", {"tag": "flaky"})["count"]  # Others have been repeated already.
    page.get_by_role("button", name="Retry all matching").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(f"{before} jobs", exact=True)).to_be_visible()
    console.keep("jobs-bulk")
    dialog.get_by_role("button", name=f"Retry {before} jobs").click()
    expect(page.get_by_text(re.compile(r"\d+ new jobs? enqueued"))).to_be_visible()
    wait_until(lambda: len(shop.api("/jobs?state=failed&tag=flaky")["items"]) == len(failed) + before, "failed again")


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
    page.get_by_role("dialog").get_by_label("Task").select_option("until")
    page.get_by_role("dialog").get_by_label("file").fill(str(tmp_path / "never"))
    assert console.seen_by_all("job-enqueue") == []
    page.get_by_role("button", name="Enqueue", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="until")).to_be_visible()
    expect(page.get_by_text("waits for never").first).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".head .state", has_text="cancelled")).to_be_visible()


def test_a_job_is_enqueued_with_the_options_that_are_folded_away(shop: Harbour, console: Watched) -> None:
    page = console.open("/jobs", "Jobs")
    page.get_by_role("button", name="Enqueue a job").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Task").select_option("send")
    dialog.get_by_label("to", exact=True).fill("the pilot")
    expect(dialog.get_by_label("Unique key")).to_be_hidden()
    dialog.get_by_text("More options").click()
    dialog.get_by_label("Delay").fill("2h")
    expect(dialog.get_by_label("Not before")).to_be_disabled()
    given = {"Deadline": "3h", "Priority": "9", "Tags": "vip, harbour", "Unique key": "pilot-1", "Fair key": "north"}
    for label, text in {**given, "Rate key": "radio", "Concurrency key": "berth", "Jobs at once": "2"}.items():
        dialog.get_by_label(label).fill(text)
    assert console.seen_by_all("job-enqueue-options") == []
    dialog.get_by_role("button", name="Enqueue", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="send")).to_be_visible()
    expect(page.locator(".head").get_by_text(re.compile("^due in (2h|1h 59m)$"))).to_be_visible()
    number = int(page.url.rpartition("/")[2])
    job = shop.api(f"/jobs/{number}")
    assert (job["priority"], job["tags"], job["unique_key"]) == (9, ["vip", "harbour"], "pilot-1")
    assert (job["fair_key"], job["rate_key"], job["concurrency_key"]) == ("north", "radio", "berth")
    assert job["deadline"] > job["due_at"] > job["created_at"]
    shop.api("/jobs/cancel", {"ids": [number]})


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
    empty = shop.api("/batches", {"task": "send", "each": []})
    page = console.open("/batches", "Batches")
    done = page.get_by_label(f"Progress of batch b{empty['id']}")
    expect(done).to_have_attribute("aria-valuenow", "100")  # It has no jobs, and has ended.
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
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.url.endswith("/count_ships/run") else None)
    row.get_by_role("button", name="Run now").dblclick()
    expect(page.get_by_text(re.compile(r"Enqueued job \d+"))).to_be_visible()
    assert len(sent) == 1, "a busy button takes no second click"
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
    expect(page.get_by_text(f"{host}/* draining").first).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text(f"{host}/* draining")).to_have_count(0)
    wait_until(lambda: shop.api("/hosts")["items"], "the host is sampled")
    page.reload()
    page.locator(".hosts a").first.click()
    expect(page.get_by_role("img", name=re.compile("^CPU over time"))).to_be_visible()
    console.keep("host")


def test_a_worker_shows_what_it_holds_and_what_it_did(shop: Harbour, console: Watched, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    number = shop.enqueue("until", file=str(gate))
    worker = next(each for each in shop.api("/workers")["items"] if "slow" in each["queues"] and not each["ended_at"])
    page = console.open("/workers", "Workers and hosts")
    page.get_by_role("link", name=f"{worker['host']}:{worker['pid']}#{worker['id']}").click()
    expect(page.get_by_role("heading", level=1, name=f"{worker['host']}:{worker['pid']}")).to_be_visible()
    held = page.get_by_role("region", name="Jobs and runs")
    expect(held.get_by_role("link", name=str(number), exact=True)).to_be_visible()
    gate.touch()
    shop.job_ends(number)
    expect(page.get_by_text("It holds nothing now")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^Wait over time"))).to_be_visible()
    console.keep("worker-history")


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
    dialog.get_by_label("Starts").select_option("send")
    dialog.get_by_label("to", exact=True).fill("a")
    dialog.get_by_label("Interval").fill("1h")
    assert console.seen_by_all("schedule-new") == []
    dialog.get_by_role("button", name="Create").click()
    remove = page.get_by_role("button", name="Delete own one")
    expect(remove).to_be_visible()
    assert console.seen_by_all("schedules-own") == []
    page.get_by_role("button", name="Fires of own one").click()
    expect(dialog.get_by_role("heading", name="Next fires")).to_be_visible()
    expect(dialog.get_by_text("It has not been due yet.")).to_be_visible()
    dialog.get_by_label("Since").fill("2026-01-01T00:00")
    dialog.get_by_label("Until").fill("2026-01-01T02:30")
    dialog.get_by_role("button", name="Backfill").click()
    expect(page.get_by_text(re.compile(r"Backfilled \d+ fires"))).to_be_visible()
    expect(dialog.get_by_role("row", name=re.compile("backfill")).first).to_be_visible()
    assert console.seen_by_all("schedule-fires") == []
    console.keep("schedule-fires")
    page.keyboard.press("Escape")
    remove.click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(remove).to_have_count(0)
    assert "own one" not in [each["name"] for each in shop.api("/schedules")["items"]]
