"""`make demo`: the shop at work in all five shapes, some of it failing, and all of it to be seen in the console."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.support.console import PATIENCE, ROOT, Site, Watched, launch, wait_until

pytestmark = pytest.mark.long

DEMO = ROOT / "examples" / "demo" / "app.py"
QUEUES = {"default", "mail", "orders", "parcels", "partners", "pipelines", "reports"}


def test_the_demo_shows_every_shape_at_work_and_some_of_it_failing(tmp_path: Path) -> None:
    with Site(DEMO, tmp_path) as shop, sync_playwright() as playwright:
        for what, is_so in seen_through_the_api(shop).items():
            wait_until(is_so, lambda what=what: f"{what}; said: {shop.heard()}")
        answer_a_question(shop)
        browser = launch(playwright)
        look = Watched(browser.new_context(viewport={"width": 1440, "height": 900}), shop.url)
        click_through(look)
        assert look.wrong == []
        browser.close()
    assert shop.status == 0, shop.heard()


def seen_through_the_api(shop: Site) -> dict[str, Callable[[], Any]]:
    """What must have happened, each with a way to see it."""

    def jobs(**filters: str) -> list[dict[str, Any]]:
        words = "&".join(f"{name}={value}" for name, value in filters.items())
        return shop.api(f"/jobs?limit=200&{words}")["items"]

    def runs(workflow: str, state: str) -> list[dict[str, Any]]:
        return shop.api(f"/runs?workflow={workflow}&state={state}")["items"]

    def sources() -> list[dict[str, Any]]:
        streams = shop.api("/streams")["items"]
        return [source for stream in streams for each in stream["dispatchers"] for source in each["sources"]]

    def stood(state: str) -> int:
        return sum(each["counts"].get(state, 0) for each in shop.api("/pipelines")["items"])

    def schedules() -> set[str]:
        return {each["name"] for each in shop.api("/schedules")["items"]}

    def alerts() -> set[str]:
        return {alert["trigger"] for alert in shop.api("/alerts")["items"]}

    return {
        "every queue gets work done": lambda: (
            {job["queue"] for job in jobs(state="succeeded")} >= QUEUES
            or all(jobs(state="succeeded", queue=queue) for queue in QUEUES)
        ),
        "a job has failed for good": lambda: jobs(state="failed"),
        "a job has been tried again": lambda: any(job["attempt"] > 1 for job in jobs(queue="mail")),
        "schedules fire": lambda: {"open_shop", "take_stock"} <= schedules(),
        "a dag and a flow wait for a person": lambda: (
            {each["shape"] for each in shop.api("/inputs")["items"]} == {"dag", "flow"}
        ),
        "a refund was settled": lambda: runs("Refund", "succeeded"),
        "the owner has answered": lambda: jobs(state="succeeded", task="answer_refund"),
        "messages flow from both topics": lambda: [each["done"] > 0 for each in sources()] == [True, True],
        "there are dead letters": lambda: shop.api("/dead-letters")["total"],
        "pages are built": lambda: stood("fresh"),
        "the mystery box fails": lambda: stood("failed"),
        "a fridge was warm, and a van silent": lambda: {"warm", "silent"} <= alerts(),
    }


def answer_a_question(shop: Site) -> None:
    """The form's answer must fit its schema; then the run goes on."""
    asks = lambda: [each for each in shop.api("/inputs")["items"] if each["shape"] == "dag"]  # noqa: E731
    asked = wait_until(asks, "a dag waits for a person")[-1]
    place = f"/runs/{asked['run_id']}"
    with pytest.raises(OSError, match="409"):
        shop.api(f"{place}/inputs/agree", {"value": {"ok": True, "supplier": "nobody"}})
    shop.api(f"{place}/inputs/agree", {"value": {"ok": True, "supplier": "North Quay"}})
    wait_until(lambda: shop.api(place)["state"] == "succeeded", "the run has ended")
    assert shop.api(place)["result"]["order"]["from"] == "North Quay"


def click_through(look: Watched) -> None:
    """As a user who has just opened it."""
    expect.set_options(timeout=PATIENCE * 1000)
    page = look.open("/", "demo")
    expect(page.locator(".tile").first).to_be_visible()
    look.keep("demo-home")
    go(page, "Runs")
    expect(page.get_by_role("link", name="stock").or_(page.get_by_text("stock", exact=True)).first).to_be_visible()
    expect(page.get_by_text("Refund", exact=True).first).to_be_visible()
    look.keep("demo-runs")
    go(page, "Streams")
    expect(page.get_by_role("cell", name="reviews", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile(r"dead letters?")).first).to_be_visible()
    look.keep("demo-streams")
    go(page, "Monitors")
    expect(page.get_by_text("fridges").first).to_be_visible()
    look.keep("demo-monitors")
    if page.get_by_role("navigation").get_by_role("link", name="States", exact=True).count():
        go(page, "States")
        expect(page.get_by_text("catalogue").first).to_be_visible()
        look.keep("demo-states")


def go(page: Page, screen: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=screen, exact=True).click()
    expect(page.get_by_role("heading", level=1, name=screen)).to_be_visible()
