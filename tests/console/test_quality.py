"""The console as a whole: accessible, small, fast, limited to its own server, and robust against restarts."""

from __future__ import annotations

import asyncio
import gzip
import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, CDPSession, Route, expect

from tests.support.console import (
    ROOT,
    STATIC,
    Harbour,
    Watched,
    harbour,
    require_browser,
    wait_until,
    watched_page,
)
from tests.support.console_app import LONG_NAME
from tests.support.server import TestServer
from tests.support.web import LOGIN_NEEDED, WebServer

#: Pairs of boxes of a graph that cover each other.
OVERLAPS = """() => {
  const nodes = [...document.querySelectorAll(".react-flow__node")];
  const boxes = nodes.map(each => [each.dataset.id, each.getBoundingClientRect()]);
  boxes.sort((a, b) => a[1].left - b[1].left);
  const found = [];
  for (let i = 0; i < boxes.length; i += 1)
    for (let j = i + 1; j < boxes.length && boxes[j][1].left < boxes[i][1].right - 0.1; j += 1)
      if (boxes[i][1].top < boxes[j][1].bottom - 0.1 && boxes[j][1].top < boxes[i][1].bottom - 0.1)
        found.push(`${boxes[i][0]} and ${boxes[j][0]}`);
  return found.slice(0, 5);
}"""
FIRST_LOAD = 300_000
FRAMES = 30

#: The paths of `web/src/app/screens.tsx`, and whether each has pages of single objects.
LISTED = {
    path: "detail:" in line
    for line in (ROOT / "web/src/app/screens.tsx").read_text().splitlines()
    for path in re.findall(r'^  { path: "([^"]+)"', line)
}

ONE_OF_MANY = (
    r"(?<![\d.,–-])1 (jobs|nodes|runs|steps|states|items|ticks|events|workers|attempts|messages|alerts|builds)\b"
)

#: Screens that have something to show in every application.
NEVER_EMPTY = {"/", "/settings"}

#: An object of each kind that does not exist, and what its page says.
ABSENT = {
    "/runs/7": "no run 7",
    "/jobs/7": "no job 7",
    "/batches/7": "no batch b7",
    "/queues/none": "This queue is not in use",
    "/tasks/none": "Nothing was done in this period",
    "/pipelines/none": "no pipeline 'none'",
    "/editor/none.yaml": "none.yaml",
    "/streams/d7": "no dead letter 7",
    "/workers/none": "No workers on this host",
    "/workers/none/7": "no worker 7",
}


@pytest.fixture(scope="module")
def shop(module_database_url: str, browser: Browser) -> Iterator[Harbour]:  # The database has a loop of its own.
    with harbour(module_database_url) as running:
        running.job_ends(running.enqueue("broken", number=1))
        running.job_ends(running.enqueue(LONG_NAME))
        yield running


@pytest.fixture(scope="module")
def screens(shop: Harbour) -> dict[str, str]:
    """Every screen, with data to show, some of it with a very long name."""
    shop.write("letters.jsonl", bad=True)
    shop.write("readings.jsonl", id="1", at=time.time(), ship="Ada", draught=12)
    letter = wait_until(lambda: shop.api("/dead-letters")["items"], "a letter is dead")[0]["id"]
    wait_until(lambda: shop.api("/alerts")["items"], "an alert has opened")
    failed, asking, waiting = shop.start("doomed"), shop.start("release"), shop.start("Article", topic="tides")
    shop.run_is(failed, "failed")
    shop.asks(asking)
    wait_until(lambda: LONG_NAME in [each["name"] for each in shop.api("/history/task")["items"]], "it is counted")
    job = shop.api("/jobs?state=failed")["items"][0]["id"]
    long = shop.api(f"/jobs?task={LONG_NAME}")["items"][0]["id"]
    batch = shop.api("/batches", {"task": "send", "each": [{"to": "Ada"}], "name": LONG_NAME[:90]})["id"]
    convoy = shop.start("Convoy", ships=["Ada", "Ben"])
    shop.run_is(convoy, "succeeded")
    fleet = shop.start("fleet")
    shop.run_is(fleet, "succeeded")
    host = wait_until(lambda: shop.api("/hosts")["items"], "the host is sampled")[0]["name"]
    worker = next(each["id"] for each in shop.api("/workers")["items"] if "mail" in each["queues"])
    wait_until(lambda: shop.api("/pipelines/charts")["counts"] == {"fresh": 1}, "the chart is drawn")
    shop.run("token", "create", "visitor", "--role", "viewer")
    return {
        "home": "/",
        "input": "/input",
        "runs": "/runs",
        "dag": f"/runs/{failed}?step=bad",
        "asking": f"/runs/{asking}?step=sign",
        "flow": f"/runs/{waiting}?step=write",
        "jobs": "/jobs",
        "long-name": f"/jobs?task={LONG_NAME}",
        "long-job": f"/jobs/{long}",
        "job": f"/jobs/{job}",
        "children": f"/runs/{convoy}",
        "map": f"/runs/{fleet}?step=weigh",
        "batches": "/batches",
        "batch": f"/batches/{batch}",
        "queues": "/queues",
        "queue": "/queues/mail",
        "tasks": "/tasks",
        "task": "/tasks/broken",
        "long-task": f"/tasks/{LONG_NAME}",
        "schedules": "/schedules",
        "editor": "/editor",
        "workflow-file": "/editor/tides.yaml",
        "pipelines": "/pipelines",
        "pipeline": "/pipelines/charts",
        "streams": "/streams",
        "message": f"/streams/d{letter}",
        "monitors": "/monitors?monitor=ships",
        "workers": "/workers",
        "host": f"/workers/{host}",
        "worker": f"/workers/{host}/{worker}",
        "audit": "/audit",
        "accounts": "/accounts",
        "settings": "/settings",
        "nowhere": "/no-such-screen",
        "nothing": "/jobs?task=no-such-task",
        "between": "/jobs?since=2026-01-01T10:00&arg=number=1&error=parcel",
    }


@pytest.mark.long
def test_every_screen_is_accessible(browser: Browser, shop: Harbour, screens: dict[str, str]) -> None:
    with watched_page(browser, shop.url) as watched:
        assert watched.read_by_all(screens) == {}


def test_the_first_load_is_small() -> None:
    require_browser()
    page = (STATIC / "index.html").read_text()
    named = re.findall(r'(?:src|href)="/([^"]+)"', page)
    assert any(name.endswith(".js") for name in named)
    sizes = {name: len(gzip.compress((STATIC / name).read_bytes(), compresslevel=1)) for name in named}
    assert sum(sizes.values()) + len(page) < FIRST_LOAD, sizes
    for lazy in ("react-flow__", "u-legend"):
        assert not any(lazy in (STATIC / name).read_text() for name in named if name.endswith(".js")), lazy


def test_the_page_allows_no_inline_script_and_no_other_origin(shop: Harbour) -> None:
    answer = httpx.get(shop.url + "/runs", timeout=150)
    policy, page = answer.headers["content-security-policy"], answer.text
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|style=|\bon\w+=", page)
    assert not re.search(r"https?://", page)


def test_files_of_the_console_are_kept_and_what_is_not_there_is_not_found(shop: Harbour) -> None:
    asset = next(iter(re.findall(r'src="(/assets/[^"]+)"', (STATIC / "index.html").read_text())))
    assert "immutable" in httpx.get(shop.url + asset, timeout=150).headers["cache-control"]
    for path in ("/assets/none.js", "/api/v1/none", "/api/none"):
        assert httpx.get(shop.url + path, timeout=150).status_code == 404, path
    for path in ("/%2e%2e/console.py", "/assets/%2e%2e/%2e%2e/site.py", "/..%2fsite.py"):
        answer = httpx.get(shop.url + path, timeout=150)
        assert answer.headers["content-type"].startswith(("text/html", "application/problem+json")), path
        assert "import" not in answer.text, path


@pytest.mark.long
def test_a_graph_of_two_thousand_nodes_is_drawn_and_moved_fluently(browser: Browser, shop: Harbour) -> None:
    number = shop.start("wide")
    shop.run_is(number, "succeeded")
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    watched = Watched(context, shop.url)
    page = watched.open(f"/runs/{number}", "wide")
    expect(page.locator(".react-flow__node")).to_have_count(2000, timeout=180_000)
    assert page.evaluate(OVERLAPS) == []
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    expect(page.get_by_text("Showing 200 of 2,000 steps.")).to_be_visible()
    box = page.locator(".react-flow__pane").bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    page.evaluate(
        "() => { window.frames_ = [];"
        " (function draw(at) { window.frames_.push(at); requestAnimationFrame(draw); })(performance.now()); }"
    )
    # Frames a second as they came, and as many as the page's own work would allow: the machine may be busy otherwise.
    seen, could = 0.0, 0.0
    debugger = context.new_cdp_session(page)
    debugger.send("Performance.enable", {"timeDomain": "threadTicks"})
    for _ in range(3):
        page.mouse.move(x, y)
        page.mouse.down()
        page.evaluate("() => { window.frames_.length = 0; }")
        worked = _worked(debugger)
        began, step = time.monotonic(), 0
        while time.monotonic() - began < 2:
            step += 1
            page.mouse.move(x + 120 * math.sin(step / 6), y + 40 * (1 - math.cos(step / 6)))
        frames = page.evaluate("() => [...window.frames_]")
        page.mouse.up()
        seen = max(seen, (len(frames) - 1) / ((frames[-1] - frames[0]) / 1000))
        could = max(could, (len(frames) - 1) / (_worked(debugger) - worked))
        if seen >= FRAMES:
            break
    watched.keep("wide")
    context.close()
    assert watched.wrong == []
    assert max(seen, could) >= FRAMES, (seen, could)


@pytest.mark.long
def test_a_list_of_twenty_thousand_jobs_is_read_narrowed_and_cancelled(browser: Browser, shop: Harbour) -> None:
    number = 0
    for number in range(4):
        job = {"task": LONG_NAME, "count": 5000, "delay": "1d", "tags": [f"flood:{number}", "flood"]}
        assert len(shop.api("/jobs/copies", job)["items"]) == 5000
    with watched_page(browser, shop.url) as watched:
        page = watched.open("/jobs?tag=flood", "Jobs")
        rows = page.locator("main tbody tr")
        expect(rows).to_have_count(50)
        for count in (100, 150, 200):
            page.get_by_role("button", name="Load more").click()
            expect(rows).to_have_count(count)
        assert watched.seen_by_all("jobs-many") == []
        page.get_by_role("searchbox", name="Tag").fill(f"flood:{number}")
        expect(page).to_have_url(re.compile("tag=flood%3A3"))
        page.get_by_role("button", name="Cancel all matching").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel 5,000 jobs").click()
        expect(page.get_by_text("5,000 jobs cancelled", exact=False)).to_be_visible()
        page.get_by_role("searchbox", name="Tag").fill("flood")
        page.get_by_role("button", name="Cancel all matching").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel 15,000 jobs").click()
        expect(page.get_by_text("15,000 jobs cancelled", exact=False)).to_be_visible()


@pytest.mark.long
def test_more_rows_are_loaded_although_a_change_comes_while_they_are_read(browser: Browser, shop: Harbour) -> None:
    job = {"task": LONG_NAME, "count": 120, "delay": "1d", "tags": ["pages"]}
    shop.api("/jobs/copies", job)
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    with watched_page(browser, shop.url) as watched:
        page = watched.open("/jobs?tag=pages", "Jobs")
        rows = page.locator("main tbody tr")
        expect(rows).to_have_count(50)
        page.route(re.compile(r"/jobs\?.*cursor=[^&]"), hold_first)
        with page.expect_request(re.compile(r"/jobs\?.*cursor=[^&]")):
            page.get_by_role("button", name="Load more").click()
        with page.expect_request(re.compile(r"/jobs\?(?!.*cursor=[^&]).*tag=pages")):
            shop.api("/jobs/copies", job | {"count": 1})
        expect(rows).to_have_count(100)
        held[0].continue_()
    shop.api("/jobs/cancel", {"filter": {"tag": "pages"}})


@pytest.fixture
def bare(server: TestServer, tmp_path: Path) -> Iterator[WebServer]:
    """A server with nothing to show."""
    (tmp_path / "bare.py").write_text('from tidemill import App\n\napp = App("bare")\n')
    url = server.create()
    web = WebServer(url, app=tmp_path / "bare.py")
    try:
        with ThreadPoolExecutor() as pool:  # The browser has the event loop of this thread.
            pool.submit(asyncio.run, web.wait_ready()).result()
        yield web
    finally:
        web.close()
        server.drop(url)


def test_every_screen_is_in_these_tests(shop: Harbour, screens: dict[str, str]) -> None:
    assert len(LISTED) > 10, "the list of screens was read"
    paths = {path.partition("?")[0] for path in screens.values()}
    assert {path for path in LISTED if path not in paths} == set(), "screens without a full one"
    for shown in (paths, set(ABSENT)):
        deeper = {f"/{path.split('/')[1]}" for path in shown if path.count("/") > 1}
        assert {path for path, has_detail in LISTED.items() if has_detail and path not in deeper} == set()


@pytest.mark.long
def test_every_screen_shows_that_it_loads_has_failed_is_empty_or_full(
    browser: Browser, shop: Harbour, screens: dict[str, str], bare: WebServer
) -> None:
    with watched_page(browser, shop.url) as watched:
        watched.loads_and_fails({name: path for name, path in screens.items() if name != "nowhere"})
    empty: dict[str, list[str]] = {}
    with watched_page(browser, bare.url) as watched:
        watched.page.set_viewport_size({"width": 390, "height": 844})
        for path in LISTED.keys() - NEVER_EMPTY:
            page = watched.open(path)
            expect(page.locator("main .empty").first).to_be_visible()
            empty[path] = page.locator("main .empty").all_inner_texts()
            watched.keep(f"empty-{path.strip('/')}")
            assert not page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        for path, told in ABSENT.items():
            watched.open(path)
            expect(watched.page.get_by_role("heading", level=1)).to_be_visible()
            expect(watched.page.locator("main").get_by_text(told).first).to_be_visible()
            watched.keep(f"absent-{path.strip('/').replace('/', '-')}")
        watched.wrong = [each for each in watched.wrong if "404" not in each]
    for path, (words, *_) in empty.items():
        title, _, advice = words.partition("\n")
        assert title, path
        assert len(advice.split()) > 4, f"{path} says only {words!r}"
    with watched_page(browser, shop.url) as watched:
        for path in screens.values():
            page = watched.open(path)
            expect(page.locator(".loading")).to_have_count(0)
            assert page.locator("main [role=alert]").count() == 0, f"{path} has data, but shows an error"
            assert not re.search(ONE_OF_MANY, page.locator("main").inner_text()), f"{path} counts one as several"
            nothing = page.locator("main .empty").all_inner_texts()
            assert path not in empty or set(empty[path]) - set(nothing), f"{path} has data, but says {nothing}"


@pytest.mark.long
def test_an_open_page_goes_on_after_the_server_was_restarted(browser: Browser, shop: Harbour) -> None:
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    watched = Watched(context, shop.url)
    page = watched.open("/jobs?task=send", "Jobs")
    expect(page.locator(".live.ok")).to_be_visible()
    page.evaluate("window.sameOldPage = true")
    shop.stop_server()
    expect(page.get_by_text("reconnecting")).to_be_visible(timeout=60_000)
    page.get_by_role("link", name="Audit log").click()  # Its code is not loaded yet, and cannot be now.
    expect(page.locator("main .loading")).to_be_visible()
    shop.serve()
    expect(page.get_by_role("heading", name="Audit log", level=1)).to_be_visible()
    page.go_back()
    number = shop.enqueue("send", to="after the storm")
    expect(page.get_by_role("link", name=str(number), exact=True)).to_be_visible()
    expect(page.locator(".live.ok")).to_be_visible()
    assert page.evaluate("window.sameOldPage") is True
    wrong = [each for each in watched.wrong if not any(away in each for away in Watched.AWAY)]
    context.close()
    assert wrong == []


@pytest.mark.long
def test_a_browser_logs_in_with_a_token_acts_and_logs_out(browser: Browser, shop: Harbour) -> None:
    token = shop.run("token", "create", "night watch", "--role", "operator").strip()
    reader = shop.run("token", "create", "visitor", "--role", "viewer").strip()
    shop.stop_server()
    shop.serve(LOGIN_NEEDED)
    try:
        link = shop.run("token", "link", "--url", shop.url).strip()
        context = browser.new_context()
        opened = context.new_page()
        opened.goto(link)
        expect(opened.get_by_role("link", name="Queues", exact=True)).to_be_visible()
        assert "token" not in opened.url, "the address keeps no secret"
        context.close()
        context = browser.new_context(viewport={"width": 1360, "height": 860})
        refused = context.new_page()
        refused.goto(link)
        expect(refused.get_by_role("alert")).to_contain_text("works once")
        refused.close()
        page = Watched(context, shop.url).open("/queues", "Tidemill")
        page.get_by_label("Token").fill("tm_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text("not known")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        row = page.get_by_role("row", name=re.compile("^slow "))
        row.get_by_role("button", name="Pause").click()
        expect(row.get_by_text("paused")).to_be_visible()
        row.get_by_role("button", name="Resume").click()
        expect(row.get_by_text("active")).to_be_visible()
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_label("Token")).to_be_visible()
        page.get_by_label("Token").fill(reader)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("row", name=re.compile("^slow "))).to_be_visible()
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        context.close()
    finally:
        shop.stop_server()
        shop.serve()


def _worked(debugger: CDPSession) -> float:
    """Seconds of processor time that the page's main thread has spent on everything so far."""
    return {each["name"]: each["value"] for each in debugger.send("Performance.getMetrics")["metrics"]}["TaskDuration"]
