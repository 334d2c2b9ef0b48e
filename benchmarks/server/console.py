"""The console in a real Chromium, for the `server` suite: how much is loaded first, how soon it can be used, and how
fluently a graph of a thousand nodes is moved. Where there is no browser or no built console, it says so instead.
"""

import gzip
import json
import math
import os
import re
import shutil
import statistics
import time
import urllib.request
from typing import Any

from benchmarks.shared.contenders import say
from benchmarks.shared.venv import ROOT

STATIC = ROOT / "tidemill" / "server" / "static"
NODES = 1000
LOADS = 5
DRAGS = 3


def measure(url: str) -> dict[str, float]:
    """Figures of the console that a server serves; none where there is nothing to look with or at."""
    if not (STATIC / "index.html").is_file():
        say("no console: `make web` builds it")
        return {}
    figures = {"bundle_kb": first_load() / 1000}
    chromium = os.environ.get("TIDEMILL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        say("no Chromium: install Debian's package chromium, or name one with TIDEMILL_CHROMIUM")
        return figures
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            figures["interactive_ms"] = statistics.median(_until_usable(browser, url) for _ in range(LOADS))
            figures["graph_fps"] = _frames(browser, url)
        finally:
            browser.close()
    return figures


def first_load() -> int:
    """Bytes that a browser fetches before anything is shown, as the server sends them."""
    page = (STATIC / "index.html").read_bytes()
    named = re.findall(r'(?:src|href)="/([^"]+)"', page.decode())
    sent = [page, *((STATIC / name).read_bytes() for name in named)]
    return sum(len(gzip.compress(each, compresslevel=1)) for each in sent)


def _until_usable(browser: Any, url: str) -> float:
    """Milliseconds from asking for the page until its figures are there, in a browser that knows nothing of it."""
    context = browser.new_context(viewport={"width": 1360, "height": 860})
    page = context.new_page()
    page.goto(url, wait_until="commit")
    page.wait_for_selector("a.tile", state="visible")
    took = page.evaluate("performance.now()")
    context.close()
    return took


def _frames(browser: Any, url: str) -> float:
    """Frames a second while the graph of a run is dragged about; the best of some drags."""
    body = json.dumps({"workflow": "wide"}).encode()
    asked = urllib.request.Request(f"{url}/api/v1/runs", body, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=20) as answer:
        number = json.load(answer)["id"]
    page = browser.new_page(viewport={"width": 1360, "height": 860})
    page.goto(f"{url}/runs/{number}")
    page.locator(".react-flow__node").nth(NODES - 1).wait_for(state="attached", timeout=60_000)
    box = page.locator(".react-flow__pane").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + 20
    page.evaluate(
        "() => { window.frames_ = [];"
        " (function draw(at) { window.frames_.push(at); requestAnimationFrame(draw); })(performance.now()); }"
    )
    found = []
    for _ in range(DRAGS):
        page.mouse.move(x, y)
        page.mouse.down()
        page.evaluate("() => { window.frames_.length = 0; }")
        began, step = time.monotonic(), 0
        while time.monotonic() - began < 3:
            step += 1
            page.mouse.move(x + 120 * math.sin(step / 6), y + 40 * (1 - math.cos(step / 6)))
        frames = page.evaluate("() => [...window.frames_]")
        page.mouse.up()
        found.append((len(frames) - 1) / ((frames[-1] - frames[0]) / 1000))
    page.close()
    return max(found)
