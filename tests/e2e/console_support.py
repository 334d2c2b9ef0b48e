"""A real server with real work, and a real browser that looks at it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, ViewportSize, expect

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "tests" / "e2e" / "console_app.py"
STATIC = ROOT / "tidemill" / "server" / "static"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"
PATIENCE = 90.0

expect.set_options(timeout=20_000)

#: Where screenshots are kept; say TIDEMILL_ARTEFACTS to keep them somewhere else.
ARTEFACTS = Path(os.environ.get("TIDEMILL_ARTEFACTS") or Path(tempfile.gettempdir()) / "tidemill-console")

WIDE: ViewportSize = {"width": 1440, "height": 900}


class Look(msgspec.Struct, frozen=True):
    """A way to look at a page, and what axe-core is asked about it, if anything."""

    width: int
    height: int
    theme: Literal["dark", "light"]
    asked: dict[str, Any] | None = None


#: What is the same in two looks is asked for in one of them.
LOOKS = {
    "dark": Look(1440, 900, "dark", {}),
    "light": Look(1440, 900, "light", {"runOnly": ["color-contrast"]}),
    "tablet": Look(1024, 768, "dark"),
    "phone": Look(390, 844, "light", {"rules": {"color-contrast": {"enabled": False}}}),
}

#: Controls of a screen of which something is out of sight to the left or to the right.
CUT_OFF = """() => [...document.querySelectorAll("main button, main input, main select, main textarea")]
  .filter(each => each.checkVisibility({visibilityProperty: true}) && !each.closest(".react-flow"))
  .filter(each => {
    const box = each.getBoundingClientRect();
    for (let around = each.parentElement; around; around = around.parentElement) {
      const edge = around.getBoundingClientRect();
      const clips = around.tagName === "HTML" || getComputedStyle(around).overflowX !== "visible";
      if (clips && (box.right > edge.right + 1 || box.left < edge.left - 1)) return true;
    }
    return false;
  })
  .map(each => "cut off: " + (each.getAttribute("aria-label") || each.textContent || each.outerHTML).slice(0, 60))"""

SETTINGS = {"TIDEMILL_LEASE_SECONDS": "20s", "TIDEMILL_HEARTBEAT_SECONDS": "0.5s", "TIDEMILL_GRACE_SECONDS": "5s"}


def require_browser() -> str:
    """Where Chromium is; skips, and says why, where there is none or no console to look at."""
    found = os.environ.get("TIDEMILL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium: install Debian's package chromium, or name one with TIDEMILL_CHROMIUM")
    if not (STATIC / "index.html").is_file():
        pytest.skip("the console is not built: run `make web`")
    return found


def launch(playwright: Playwright) -> Browser:
    """A browser without a window."""
    return playwright.chromium.launch(executable_path=require_browser(), args=["--no-sandbox"])


class Process:
    """One command of ours, with what it says."""

    def __init__(self, *words: str, folder: Path, more: dict[str, str] | None = None) -> None:
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        self.said: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", *words],
            cwd=folder,
            env={**environment, **SETTINGS, **(more or {}), "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self.said.extend(self._process.stdout)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """End it; returns its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(sign)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Harbour:
    """The application at work: everything that runs, and a server that can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._place = ("--directory", str(folder / "data"))
        for name in ("letters.jsonl", "readings.jsonl"):
            (folder / name).touch()
        self._more = {"HARBOUR_LIVE": f"127.0.0.1:{free_port()}"}
        self._all = Process("up", str(APP), "--no-server", *self._place, folder=folder, more=self._more)
        self._server: Process | None = None
        wait_until(self._works, lambda: f"workers have started; said: {self._heard()}")

    def serve(self, *options: str) -> None:
        """Start the server; returns when it answers."""
        words = ("server", str(APP), "--port", str(self.port), *self._place, *options)
        self._server = Process(*words, folder=self.folder, more=self._more)
        wait_until(self._answers, lambda: f"the server answers; said: {self._heard()}")

    def stop_server(self) -> None:
        assert self._server is not None
        self._server.stop()

    def close(self) -> None:
        for process in (self._server, self._all):
            if process is not None:
                process.stop()

    def run(self, *words: str) -> str:
        """A command of ours in this application's place."""
        return subprocess.run(
            [sys.executable, "-m", "tidemill.cli.main", *words, *self._place],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    def api(self, path: str, body: Any = None) -> Any:
        """Ask the server for something, as a program does."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def enqueue(self, task: str, **args: Any) -> int:
        return self.api("/jobs", {"task": task, "args": args})["id"]

    def start(self, workflow: str, **args: Any) -> int:
        return self.api("/runs", {"workflow": workflow, "args": args})["id"]

    def write(self, name: str, **line: Any) -> None:
        """Add a line to a file that a stream or a monitor follows."""
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def job_ends(self, number: int) -> dict[str, Any]:
        """A job once it has ended."""
        done = ("succeeded", "failed", "cancelled")
        return wait_until(lambda: (job := self.api(f"/jobs/{number}"))["state"] in done and job, f"job {number} ends")

    def run_is(self, number: int, state: str) -> dict[str, Any]:
        """A run once it is in a state."""
        return wait_until(lambda: (run := self.api(f"/runs/{number}"))["state"] == state and run, f"r{number} {state}")

    def asks(self, number: int) -> dict[str, Any]:
        """What a run asks people, once it does."""
        return wait_until(lambda: self.api(f"/inputs?run={number}")["items"], f"r{number} asks")[0]

    def _works(self) -> bool:
        return any("worker started" in line for line in list(self._all.said))

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError):
            return self.api("/health")["ok"]
        return False

    def _heard(self) -> str:
        return "".join([*self._all.said[-5:], *(self._server.said[-10:] if self._server else [])])


class Site:
    """A whole application as `tidemill up` runs it, while the block lasts."""

    def __init__(self, app: Path, folder: Path, *options: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        words = options or ("--directory", str(folder / "data"))
        self._process = Process("up", str(app), "--port", str(self._port), *words, folder=folder)
        self.status: int | None = None

    def __enter__(self) -> Site:
        try:
            wait_until(self._answers, lambda: f"the server answers; said: {self.heard()}")
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.status = self._process.stop()

    def api(self, path: str, body: Any = None) -> Any:
        """Ask the server for something, as a program does; a path that begins with /pages is a page's own."""
        data = None if body is None else json.dumps(body).encode()
        place = path if path.startswith("/pages/") else f"/api/v1{path}"
        request = urllib.request.Request(f"{self.url}{place}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return json.load(answer)

    def heard(self) -> str:
        """What was said last."""
        return "".join(self._process.said[-30:])

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError):
            return self.api("/health")["ok"]
        return False


class Watched:
    """A page, and everything that it does wrong."""

    #: What a browser says by itself when a server is away: not the page's fault.
    AWAY = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET", "ERR_EMPTY_RESPONSE")

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.page: Page = context.new_page()
        self.url = url
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self._check(asked.url))

    def _check(self, asked: str) -> None:
        if not asked.startswith((self.url, "data:")):
            self.wrong.append(f"asked another origin: {asked}")

    def open(self, path: str, heading: str | re.Pattern[str] | None = None) -> Page:
        """Go to a screen."""
        self.page.goto(self.url + path)
        if heading is not None:
            expect(self.page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        return self.page

    def keep(self, name: str) -> None:
        """Keep a picture of the page."""
        ARTEFACTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=ARTEFACTS / f"{name}.png")

    def read_by_all(self, screens: dict[str, str]) -> dict[str, list[str]]:
        """What is wrong with each of some screens, in each look."""
        problems: dict[str, list[str]] = {}
        for name, path in screens.items():
            self.open(path)
            expect(self.page.get_by_role("heading", level=1)).to_be_visible()
            expect(self.page.locator(".loading")).to_have_count(0)
            if found := self.seen_by_all(name):
                problems[name] = found
        return problems

    def seen_by_all(self, name: str) -> list[str]:
        """What is wrong with the page as it is open now, in each look; a picture of each is kept."""
        found: list[str] = []
        for called, look in LOOKS.items():
            self.page.emulate_media(color_scheme=look.theme)
            self.page.set_viewport_size({"width": look.width, "height": look.height})
            self.page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=look.theme)
            self.keep(f"{name}-{called}")
            wrong = [] if look.asked is None else self.serious_problems(look.asked)
            if self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wrong.append("the page is wider than the window")
            found += [f"{called}: {each}" for each in (*wrong, *self.page.evaluate(CUT_OFF))]
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size(WIDE)
        return found

    def serious_problems(self, asked: dict[str, Any] | None = None) -> list[str]:
        """What axe-core finds that would shut people out: by all of its rules, unless some are asked for."""
        # Through the debugger, for the page's own policy lets no foreign script in.
        debugger = self.page.context.new_cdp_session(self.page)
        options = json.dumps({"resultTypes": ["violations"], **(asked or {})})
        look = (
            f"axe.run(document, {options}).then(found => JSON.stringify(found.violations"
            ".filter(each => ['serious', 'critical'].includes(each.impact))"
            ".map(each => each.id + ': ' + each.nodes.slice(0, 3).map(node => node.html.slice(0, 200)).join(' | '))))"
        )
        if not debugger.send("Runtime.evaluate", {"expression": "'axe' in window"})["result"]["value"]:
            debugger.send("Runtime.evaluate", {"expression": AXE.read_text()})
        found = debugger.send("Runtime.evaluate", {"expression": look, "awaitPromise": True, "returnByValue": True})
        debugger.detach()
        return json.loads(found["result"]["value"])


@contextlib.contextmanager
def watched_page(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A page that must do nothing wrong."""
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce", **options)
    context.set_default_timeout(20_000)
    watched = Watched(context, url)
    try:
        yield watched
    finally:
        context.close()
    assert watched.wrong == [], watched.wrong


@contextlib.contextmanager
def harbour() -> Iterator[Harbour]:
    """The application at work in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="tidemill-console-") as folder:
        made = Harbour(Path(folder))
        try:
            made.serve()
            wait_until(lambda: made.api("/overview")["counts"]["workers_alive"] >= 2, "workers are alive")
            yield made
        finally:
            made.close()


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str], timeout: float = PATIENCE) -> Any:
    """The first truthy value of a condition."""
    give_up = time.monotonic() + timeout
    while not (seen := condition()):
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {timeout:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)
    return seen
