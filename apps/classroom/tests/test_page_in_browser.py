"""The teacher's page in a real browser, with a simulated class behind it: a teacher's main job, and a researcher's."""

from __future__ import annotations

import io
import json
import re
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from apps.classroom.simulator import Lesson, Production, serve
from tests.support.console import ROOT, Process, Watched, wait_until
from tests.support.ports import free_port

pytestmark = pytest.mark.long

APP = ROOT / "apps" / "classroom" / "app.py"
STUDENTS = 16
WIDE, PHONE = {"width": 1360, "height": 860}, {"width": 390, "height": 844}
#: The lesson went on for so long, and has been over for so long when somebody looks: everybody has gone quiet, and no
#: other alert opens or ends while a test looks on.
PAST, OVER = 2400.0, 400.0


class School:
    """The application at work, and the class behind it."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        self._process = Process(
            "up", str(APP), "--trust-local", "--port", port, "--directory", str(folder / "data"), folder=folder
        )

    def board(self) -> Any:
        try:
            with urllib.request.urlopen(f"{self.url}/pages/classroom/api/board", timeout=150) as answer:
                return json.load(answer)
        except OSError:
            return None

    def is_ready(self) -> bool:
        board = self.board()
        return board is not None and len(board["cards"]) == len(board["visits"]) == STUDENTS

    @property
    def said(self) -> str:
        return "".join(self._process.said[-20:])

    def close(self) -> None:
        self._process.stop()


@pytest.fixture(scope="module")
def school(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[School]:
    now = time.time() - OVER
    lesson = Lesson(STUDENTS, start=now - PAST, seed=11, now=lambda: now)
    api = serve(Production(lesson))
    threading.Thread(target=api.serve_forever, args=(0.05,), daemon=True).start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLASSROOM_URL", f"http://127.0.0.1:{api.server_address[1]}")
        patch.setenv("CLASSROOM_ROSTER", "open")
        patch.setenv("CLASSROOM_KEY", "a key")
        made = School(tmp_path_factory.mktemp("school"))
    try:
        wait_until(made.is_ready, lambda: f"the class is followed; said: {made.said}", timeout=90)
        yield made
    finally:
        made.close()
        api.shutdown()
        api.server_close()


def teacher(browser: Browser, school: School, name: str, size: Any = WIDE, theme: Any = "light") -> Watched:
    """A browser in which somebody has said who they are."""
    context = browser.new_context(viewport=size, color_scheme=theme, accept_downloads=True)
    context.add_init_script(f"localStorage.setItem('classroom.who', '{name}')")
    watched = Watched(context, school.url)
    watched.open("/pages/classroom/", "Students to visit")
    expect(watched.page.locator(".live.ok")).to_be_visible(timeout=60_000)
    return watched


def going(page: Page, student: str) -> Any:
    return page.locator(f'.visit[data-key="{student}"]')


def test_a_teacher_sees_whom_to_go_to_goes_and_says_what_it_was(browser: Browser, school: School) -> None:
    lee, day = teacher(browser, school, "Ms Lee"), teacher(browser, school, "Mr Day")
    page, other = lee.page, day.page
    student = page.locator(".visit h2 a").first.inner_text()
    first = going(page, student)
    expect(first).to_contain_text(re.compile(r"for \d+ (s|min|h)"))
    expect(first.locator(".why-line")).to_contain_text(re.compile(r"^(Stuck|Gone quiet|Replaced|Was stuck).*\.$"))
    expect(first).to_contain_text("without a change")

    # "I'm going": everybody sees it without doing anything.
    first.get_by_role("button", name="I’m going").click()
    expect(going(page, student)).to_contain_text("You are going", timeout=60_000)
    expect(going(other, student)).to_contain_text("Ms Lee is going", timeout=60_000)
    expect(going(other, student).get_by_role("button", name="I’m going")).to_have_count(0)

    # Open the student, and read what changed in the program.
    going(page, student).get_by_role("link", name=student, exact=True).click()
    expect(page.get_by_role("heading", level=1, name=student)).to_be_visible()
    expect(page.locator(".program").first).to_be_visible(timeout=60_000)
    changed = page.locator("details.run-told", has_text="% changed").first
    if changed.get_attribute("open") is None:
        changed.locator("summary").click()
    expect(changed.get_by_role("list", name="What changed")).to_be_visible()
    expect(changed.locator(".came, .went, .set").first).to_be_visible()
    expect(page.locator(".run-chart")).to_be_visible()
    lee.keep("classroom-student-light")

    # Done, with a note; nobody has to go any more.
    page.get_by_role("button", name=f"Done: {student}").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("What was the problem?").fill("mixed up degrees and millimetres")
    dialog.get_by_label("yes").check()
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator(".alert .note").first).to_contain_text(
        "mixed up degrees and millimetres #right", timeout=60_000
    )
    page.get_by_role("link", name="Visits", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="Students to visit")).to_be_visible()
    expect(going(page, student)).to_have_count(0, timeout=60_000)
    other.get_by_role("link", name="Alerts", exact=True).click()
    other.get_by_role("button", name="All", exact=True).click()
    expect(other.get_by_text("mixed up degrees and millimetres").first).to_be_visible(timeout=60_000)
    assert (lee.wrong, day.wrong) == ([], [])
    for each in (lee, day):
        each.page.context.close()


def test_a_teacher_does_it_on_a_phone(browser: Browser, school: School) -> None:
    lee = teacher(browser, school, "Ms Lee", PHONE)
    page = lee.page
    student = page.locator(".visit h2 a").last.inner_text()
    button = going(page, student).get_by_role("button", name="I’m going")
    box = button.bounding_box()
    assert box is not None
    assert box["height"] >= 40  # as large as a finger
    assert box["width"] >= 100
    button.click()
    expect(going(page, student)).to_contain_text("You are going", timeout=60_000)
    lee.keep("classroom-now-phone")
    going(page, student).get_by_role("button", name=f"Cancel visit: {student}").click()
    expect(going(page, student).get_by_role("button", name="I’m going")).to_be_visible(timeout=60_000)
    wrong = lee.wrong
    page.context.close()
    assert wrong == []


def test_a_researcher_moves_a_threshold_compares_profiles_and_plays_the_day_again(
    browser: Browser, school: School
) -> None:
    eve = teacher(browser, school, "Eve")
    page = eve.page
    page.get_by_role("link", name="Research").click()
    slider = page.get_by_label("Big rewrite from")
    expect(slider).to_be_visible(timeout=60_000)
    said = page.locator(".threshold").first.locator("output")
    expect(said).to_contain_text(re.compile(r"50 % of the program: (\d+ times|once), [\d.]+ per hour"))
    before = said.inner_text()
    slider.focus()
    for _ in range(30):
        page.keyboard.press("ArrowLeft")
    expect(said).to_contain_text("20 % of the program")
    assert _count(said.inner_text()) > _count(before)

    page.get_by_role("button", name="Run the comparison").click()
    table = page.get_by_role("region", name="Alerts of each profile")
    for profile in ("document", "corrected", "glass box"):
        expect(table.get_by_role("row", name=re.compile(f"^{profile} "))).to_be_visible(timeout=60_000)
    expect(page.get_by_text(re.compile(r"document and corrected: \d+ alerts are the same"))).to_be_visible()

    page.get_by_role("button", name="Play").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible(timeout=60_000)
    shown = page.locator(".replay .clock")
    began, real = _seconds(shown.inner_text()), time.monotonic()
    wait_until(lambda: (_seconds(shown.inner_text()) - began) % 86400 >= 20, "twenty seconds of the day have passed")
    assert time.monotonic() - real < 15  # at ten times the speed
    page.get_by_role("button", name="Pause").click()
    page.get_by_label("Time of day").fill("1000")
    expect(page.locator(".heads li")).to_have_count(STUDENTS)
    expect(page.locator(".heads li.bad").first).to_be_visible()
    page.locator(".replay").scroll_into_view_if_needed()
    eve.keep("classroom-replay-light")

    with page.expect_download() as downloading:
        page.get_by_role("link", name="ProgSnap2").click()
    with zipfile.ZipFile(io.BytesIO(Path(downloading.value.path()).read_bytes())) as archive:
        assert "MainTable.csv" in archive.namelist()
        assert "s001" not in archive.read("MainTable.csv").decode()

    switch = page.get_by_role("switch", name=re.compile("^big-rewrite"))
    switch.uncheck()
    expect(page.get_by_text("big-rewrite is disabled")).to_be_visible(timeout=60_000)
    wait_until(lambda: school.board()["off"] == ["big-rewrite"], "the trigger is off")
    switch.check()
    wait_until(lambda: school.board()["off"] == [], "the trigger is on")
    wrong = eve.wrong
    page.context.close()
    assert wrong == []


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "dark"), (WIDE, "light"), (PHONE, "light")])
def test_everybody_can_read_every_place(size: Any, theme: str, browser: Browser, school: School) -> None:
    watched = teacher(browser, school, "Ms Lee", size, theme)
    page = watched.page
    look = "phone" if size is PHONE else theme
    problems: dict[str, list[str]] = {}
    for name, place in {
        "now": "#/",
        "class": "#/class",
        "alerts": "#/alerts",
        "student": "#/student/s002",
        "research": "#/research",
    }.items():
        page.goto(f"{school.url}/pages/classroom/{place}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.locator(".loading")).to_have_count(0, timeout=60_000)
        if part := {"student": ".run-told", "research": ".threshold"}.get(name):
            expect(page.locator(part).first).to_be_visible(timeout=60_000)
        watched.keep(f"classroom-{name}-{look}")
        found = watched.serious_problems()
        if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            found.append("the page is wider than the window")
        if found:
            problems[name] = found
    page.goto(f"{school.url}/pages/classroom/#/")
    page.locator(".visit").last.get_by_role("button", name=re.compile("^Done")).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    watched.keep(f"classroom-dialog-{look}")
    if found := watched.serious_problems():
        problems["dialog"] = found
    wrong = watched.wrong
    page.context.close()
    assert problems == {}
    assert wrong == []


def _count(text: str) -> int:
    found = re.search(r"(\d+) times", text)
    return 1 if found is None else int(found[1])


def _seconds(clock: str) -> int:
    found = re.findall(r"\d+", clock)
    hours = int(found[0]) % 12 + (12 if "PM" in clock.upper() else 0) if "M" in clock.upper() else int(found[0])
    return hours * 3600 + int(found[1]) * 60 + int(found[2])
