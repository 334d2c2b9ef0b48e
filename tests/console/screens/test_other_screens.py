"""The screens of streams, alerts, administration, search and home in a real Chromium, while real work runs."""

from __future__ import annotations

import json
import re
import time

from playwright.sync_api import Route, expect

from tests.support.console import Harbour, Watched, wait_until


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
    page.get_by_role("searchbox", name="Error text").fill("no such error")
    expect(page.get_by_text("No dead letters match these filters")).to_be_visible()
    page.get_by_role("searchbox", name="Error text").fill("no address")
    page.get_by_label("Given up", exact=True).select_option("1h")
    page.get_by_role("button", name="Replay all matching").click()
    page.get_by_role("dialog").get_by_role("button", name=re.compile("^Replay [0-9]+ dead letters$")).click()
    expect(page.get_by_text("No dead letters match these filters")).to_be_visible()
    page.get_by_role("searchbox", name="Error text").fill("")
    page.get_by_label("Given up", exact=True).select_option("")
    expect(page.get_by_text("No dead letters")).to_be_visible()
    row.get_by_role("button", name="Limit box").click()
    page.get_by_label("Maximum messages per second").fill("25")
    page.get_by_label("Burst").fill("10")
    page.get_by_role("button", name="Set limit").click()
    expect(row.get_by_text("25/s, burst 10")).to_be_visible()
    row.get_by_role("button", name="Limit box").click()
    page.get_by_label("Maximum messages per second").fill("")
    page.get_by_role("button", name="Remove limit").click()
    expect(row.get_by_text("none")).to_be_visible()
    page.get_by_role("button", name="Send live request").click()
    page.get_by_label("Eligibilities").fill("sort")
    page.get_by_role("dialog").locator("textarea").fill('{"number": 12}')
    page.get_by_role("button", name="Send", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("shelf: 12")
    console.keep("streams-live")


def test_a_monitor_without_events_has_had_no_tick(shop: Harbour, console: Watched) -> None:
    def before_the_first_event(route: Route) -> None:
        answer = route.fetch()
        lines = answer.json()
        for line in lines["items"]:
            line |= {"tick": 0, "tick_at": 0.0, "events": 0, "cursor_at": None}
        route.fulfill(response=answer, json=lines)

    console.page.route("**/api/v1/monitors", before_the_first_event)
    page = console.open("/monitors", "Monitors")
    expect(page.get_by_text("none yet")).to_be_visible()


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
