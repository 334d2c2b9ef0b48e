"""The pipelines screen in a real Chromium, while a real pipeline runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.support.console import ROOT, Site, Watched, wait_until, watched_page

APP = ROOT / "tests" / "support" / "states_app.py"
DAYS = [f"2026-03-{number:02}" for number in range(1, 8)]


class Ship(Site):
    """A ship with a log."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        (folder / "book/watch").mkdir(parents=True)
        for day in DAYS:
            self.write(day, "calm sea, light wind\n")
        super().__init__(APP, folder, "--database-url", database_url)

    def write(self, day: str, text: str) -> None:
        (self.folder / f"book/watch/{day}.txt").write_text(text)

    def settled(self) -> dict[str, int]:
        """How states stand, once nothing is under way."""
        ends = {"fresh", "failed", "blocked"}
        return wait_until(
            lambda: (found := self.api("/pipelines/logbook")["counts"]).keys() <= ends and found, "all has settled"
        )

    def is_so(self, **counts: int) -> None:
        """Wait until so many states stand so."""
        wait_until(lambda: self.api("/pipelines/logbook")["counts"] == counts, f"states are {counts}")


@pytest.fixture(scope="module")
def ship(module_database_url: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ship]:
    ship = Ship(tmp_path_factory.mktemp("ship"), module_database_url)
    with ship:
        ship.is_so(fresh=15)
        yield ship


@pytest.fixture
def console(browser: Browser, ship: Ship) -> Iterator[Watched]:
    with watched_page(browser, ship.url) as watched:
        yield watched


def cell(page: Page, stage: str, day: str, state: str = "") -> Locator:
    """Return the cell of a stage and day that shows a state."""
    return page.get_by_role("button", name=re.compile(f"^{stage} of {day}: {state}"))


def test_a_failed_state_is_found_explained_and_retried_where_it_is_seen(ship: Ship, console: Watched) -> None:
    before = ship.settled()
    page = console.open("/pipelines", "Pipelines")
    page.get_by_role("link", name="logbook", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="logbook")).to_be_visible()
    expect(page.locator(".head").get_by_text("active")).to_be_visible()
    expect(cell(page, "tidy", DAYS[0], "fresh")).to_be_visible()
    ship.write("2026-03-08", "illegible")
    failed = cell(page, "tidy", "2026-03-08", "failed")
    expect(failed).to_be_visible()
    expect(cell(page, "page", "2026-03-08", "blocked")).to_be_visible()
    page.get_by_role("group", name="State", exact=True).get_by_role("button", name=re.compile("^failed")).click()
    expect(page).to_have_url(re.compile("state=failed"))
    expect(cell(page, "tidy", DAYS[0])).to_have_count(0)
    failed.click()
    panel = page.get_by_role("complementary", name="tidy of 2026-03-08")
    expect(panel.get_by_text("the entry of 2026-03-08 cannot be read").first).to_be_visible()
    expect(panel.get_by_label("Error")).to_contain_text("ValueError")
    expect(panel.get_by_role("link", name="page / 2026-03-08")).to_be_visible()
    console.keep("states-failed")
    ship.write("2026-03-08", "gale from the west")
    expect(panel.get_by_text("It is up to date", exact=False)).to_be_visible()
    expect(panel.get_by_label("Content of clean/2026-03-08.txt")).to_have_text("Gale from the west")
    expect(page.get_by_text("No entities match these filters")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    panel.get_by_role("link", name="page / 2026-03-08").click()
    html = page.get_by_label("Content of page/2026-03-08.html")
    expect(html).to_contain_text("<script>document.title = 'stolen'</script>")
    assert "stolen" not in page.title()
    panel = page.get_by_role("complementary", name="page of 2026-03-08")
    panel.get_by_role("button", name="Rebuild").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 state", exact=True)).to_be_visible()
    dialog.get_by_label("Also rebuild all states that depend on it").check()
    expect(dialog.get_by_text("2 states", exact=True)).to_be_visible()
    console.keep("states-rebuild")
    dialog.get_by_role("button", name="Rebuild 2 states").click()
    expect(page.get_by_text("2 states will be rebuilt.")).to_be_visible()
    expect(panel.get_by_text("it was invalidated by local")).to_have_count(1)
    expect(panel.get_by_text("2 builds")).to_be_visible()
    ship.is_so(**{**before, "fresh": before["fresh"] + 2})


def test_all_pipelines_are_one_graph_that_tells_what_a_change_would_build(ship: Ship, console: Watched) -> None:
    ship.settled()
    page = console.open("/pipelines", "Pipelines")
    graph = page.get_by_label("Lineage of all pipelines")
    node = graph.get_by_role("group", name="logbook/tidy, ")
    expect(node).to_be_visible()
    expect(graph.get_by_role("group", name="watch/{day}.txt, source")).to_be_visible()
    node.click()
    expect(page).to_have_url(re.compile("node=logbook"))
    change = page.get_by_role("region", name="A change of logbook/tidy")
    expect(change.get_by_text(re.compile(r"^\d+ states would be built$"))).to_be_visible()
    expect(change.get_by_role("listitem").filter(has_text="index: 1 state")).to_be_visible()
    console.keep("lineage")
    asked = page.get_by_label("What if this changes?")
    asked.fill(f"watch/{DAYS[1]}.txt")
    asked.press("Enter")
    expect(page.get_by_text("3 states would be built")).to_be_visible()
    asked.fill("page/2031-01-01.html")
    asked.press("Enter")
    absent = page.get_by_role("region", name="A change of page/2031-01-01.html")
    expect(absent.get_by_text("There is no such state", exact=False)).to_be_visible()
    expect(absent.get_by_text("watch/2031-01-01.txt does not exist", exact=False)).to_be_visible()
    asked.fill("nowhere/at/all")
    asked.press("Enter")
    expect(page.get_by_text("is neither a file that a stage takes or makes", exact=False)).to_be_visible()
    console.wrong = [each for each in console.wrong if "404" not in each]


def test_a_state_shows_what_it_held_before_and_what_was_changed(ship: Ship, console: Watched) -> None:
    ship.settled()
    day = DAYS[2]
    for text in ("first light\nwind from the east\n", "first light\nwind from the south\n"):
        ship.write(day, text)
        wait_until(lambda text=text: text.split()[-1] in (ship.folder / f"book/clean/{day}.txt").read_text(), text)
    ship.settled()
    page = console.open(f"/pipelines/logbook?stage=tidy&entity={day}", "logbook")
    panel = page.get_by_role("complementary", name=f"tidy of {day}")
    difference = panel.get_by_label("Difference to the build before", exact=True)
    expect(difference).to_contain_text("-wind from the east")
    expect(difference).to_contain_text("+wind from the south")
    earlier = panel.get_by_label("Earlier contents").get_by_role("listitem")
    expect(earlier).to_have_count(2)
    console.keep("states-difference")


def test_a_backfill_waits_for_approval_shows_its_progress_and_ends(ship: Ship, console: Watched) -> None:
    before = ship.settled()
    (ship.folder / "fog").touch()
    page = console.open("/pipelines/logbook?order=asc", "logbook")
    page.get_by_role("button", name="Backfill …").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Stage").select_option("page")
    dialog.get_by_label("First entity").fill(DAYS[0])
    dialog.get_by_label("Last entity").fill(DAYS[5])
    dialog.get_by_label("Also rebuild all states that depend on them").uncheck()
    expect(dialog.get_by_text("6 states", exact=True)).to_be_visible()
    expect(dialog.get_by_text("need approval")).to_be_visible()
    console.keep("states-backfill")
    dialog.get_by_role("button", name="Rebuild 6 states").click()
    meter = page.get_by_role("meter", name=re.compile("^Backfill"))
    expect(meter).to_have_attribute("aria-valuenow", "0")
    banner = page.get_by_role("status").filter(has_text="6 states of page need a rebuild")
    expect(banner).to_be_visible()
    expect(page.get_by_text("6 cannot be built now")).to_be_visible()
    console.keep("states-approval")
    banner.get_by_role("button", name="Approve").click()
    expect(banner).to_have_count(0)
    expect(cell(page, "page", ".*", "building").first).to_be_visible()
    console.keep("states-progress")
    (ship.folder / "fog").unlink()
    expect(meter).to_have_attribute("aria-valuenow", "100")
    expect(page.get_by_text("6 of 6 built")).to_be_visible()
    ship.is_so(**before)
    page.get_by_role("button", name="Pause", exact=True).first.click()
    expect(page.get_by_text("paused by local").first).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).first.click()
    expect(page.locator(".head").get_by_text("active")).to_be_visible()


def test_the_grid_is_walked_with_the_keyboard_and_orphans_are_cleaned_up(ship: Ship, console: Watched) -> None:
    page = console.open("/pipelines/logbook?order=asc", "logbook")
    cell(page, "tidy", DAYS[0]).focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(cell(page, "page", DAYS[1])).to_be_focused()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"stage=page&entity={DAYS[1]}"))
    page.keyboard.press("Escape")
    expect(page.get_by_role("complementary", name=f"page of {DAYS[1]}")).to_have_count(0)
    (ship.folder / f"book/watch/{DAYS[6]}.txt").unlink()
    page.get_by_role("button", name="Clean up 1 orphan").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text(f"clean/{DAYS[6]}.txt")).to_be_visible()
    dialog.get_by_role("button", name="Archive 1 state").click()
    expect(page.get_by_text("Archived 1 state.")).to_be_visible()
    page.get_by_role("button", name="Clean up 1 orphan").click()  # The state built from it has lost its input too.
    dialog.get_by_role("button", name="Archive 1 state").click()
    expect(cell(page, "page", DAYS[6])).to_have_count(0)


def test_the_states_are_accessible(ship: Ship, console: Watched) -> None:
    ship.write("2026-03-09", "illegible")
    wait_until(lambda: ship.api("/pipelines/logbook")["counts"].get("failed") == 1, "one has failed")
    screens = {
        "states-list": "/pipelines",
        "states-grid": "/pipelines/logbook",
        "states-state": "/pipelines/logbook?stage=tidy&entity=2026-03-09",
        "states-page": f"/pipelines/logbook?stage=page&entity={DAYS[2]}",
        "states-none": "/pipelines/logbook?text=no-such-day",
    }
    assert console.read_by_all(screens) == {}
    console.loads_and_fails({name: path for name, path in screens.items() if name != "states-none"})
    ship.write("2026-03-09", "calm")


def test_home_tells_of_states_that_have_failed_and_leads_to_them(ship: Ship, console: Watched) -> None:
    ship.write("2026-03-10", "illegible")
    page = console.open("/")
    line = page.locator(".failures li", has_text="logbook")
    expect(line).to_contain_text("the entry of 2026-03-")
    expect(page.locator("a.tile", has_text="Failing now")).to_contain_text("state")
    page.get_by_role("link", name="Failed states").click()
    expect(page).to_have_url(re.compile("/pipelines.state=failed"))
    page.get_by_role("link", name="logbook", exact=True).click()
    expect(cell(page, "tidy", "2026-03-10", "failed")).to_be_visible()
    expect(cell(page, "tidy", DAYS[0])).to_have_count(0)
    ship.write("2026-03-10", "calm")
    ship.write("2026-03-09", "calm")
    console.open("/")
    expect(line).to_have_count(0)


def test_a_state_that_is_opened_by_its_address_is_in_the_grid_beside_it(ship: Ship, console: Watched) -> None:
    ship.settled()
    page = console.open("/pipelines/logbook?stage=index&entity=", "logbook")
    expect(page.get_by_role("group", name="Group by").get_by_role("button", name="index (1)")).to_have_attribute(
        "aria-pressed", "true"
    )
    expect(page.get_by_role("region", name="Grid of states").get_by_role("columnheader", name="index")).to_be_visible()
