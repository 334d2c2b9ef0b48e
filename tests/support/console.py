"""A real server with real work, and a real browser that opens its console."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
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
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Route, ViewportSize, expect, sync_playwright

from tests.support.cli import run
from tests.support.nursery import Born, begin
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE
from tests.support.web import trusting
from tidemill.store.access.key_ring import KEYS, new_key

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "tests" / "support" / "console_app.py"
STATIC = ROOT / "tidemill" / "server" / "static"
AXE = ROOT / "web" / "node_modules" / "axe-core" / "axe.min.js"

#: Emulates no graphics processor and fetches nothing in the background, which saves a fifth of the browser's time.
QUICK = [
    "--disable-gpu",
    "--disable-software-rasterizer",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--renderer-process-limit=1",
]

expect.set_options(timeout=PATIENCE * 1000)

#: The folder of screenshots, which cost a fifth of the time of these tests; none are made if it is not set.
ARTEFACTS = os.environ.get("TIDEMILL_ARTEFACTS")

WIDE: ViewportSize = {"width": 1440, "height": 900}


class Look(msgspec.Struct, frozen=True):
    """A viewport and theme, and the options of axe-core for it; None skips axe-core."""

    width: int
    height: int
    theme: Literal["dark", "light"]
    asked: dict[str, Any] | None = None


#: A check whose result is the same in two looks runs in only one of them.
LOOKS = {
    "dark": Look(1440, 900, "dark", {}),
    "light": Look(1440, 900, "light", {"runOnly": ["color-contrast"]}),
    "tablet": Look(1024, 768, "dark"),
    "phone": Look(390, 844, "light", {"rules": {"color-contrast": {"enabled": False}}}),
}

#: Controls of a screen that are cut off at the left or right.
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

#: Ends when the page has been laid out and painted after a change.
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"

#: An input of the application's pipeline, and a workflow file.
FILES = {
    "charts/soundings/north.txt": "12 fathoms",
    "workflows/tides.yaml": "name: tides\nnodes:\n  - {name: measure, task: pass_on, args: {value: 3}}\n",
}

SETTINGS = {"TIDEMILL_LEASE_SECONDS": "20s", "TIDEMILL_HEARTBEAT_SECONDS": "0.5s", "TIDEMILL_GRACE_SECONDS": "5s"}


def require_browser() -> str:
    """Return the path of Chromium; skip the test if there is none, or if the console is not built."""
    found = os.environ.get("TIDEMILL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("no Chromium: install Debian's package chromium, or name one with TIDEMILL_CHROMIUM")
    if not (STATIC / "index.html").is_file():
        pytest.skip("the console is not built: run `make web`")
    return found


def launch(playwright: Playwright) -> Browser:
    """Start a headless browser."""
    return playwright.chromium.launch(executable_path=require_browser(), args=["--no-sandbox", *QUICK])


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A browser; while it is there, nothing else in this process can run an event loop."""
    require_browser()
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()


class Process:
    """A running `tidemill` command and its output."""

    def __init__(
        self, *words: str, folder: Path, more: dict[str, str] | None = None, python: Path | None = None
    ) -> None:
        environment = {name: text for name, text in os.environ.items() if not name.startswith("TIDEMILL_")}
        environment["PYTHONPATH"] = str(ROOT) if python is None else ""  # Another Python has Tidemill installed.
        environment |= {**SETTINGS, **(more or {})}
        self.said: list[str] = []
        self._process: Born | subprocess.Popen[str]
        if python is None:
            self._process = begin("tidemill.cli.main", words, cwd=folder, env=environment)
        else:
            self._process = subprocess.Popen(
                [python, "-m", "tidemill.cli.main", *words],
                cwd=folder,
                env=environment,
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
        """Stop the process and return its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(sign)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


class Harbour:
    """The running application: all of its processes, and a server that can be restarted."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        for name in ("letters.jsonl", "readings.jsonl"):
            (folder / name).touch()
        for name, text in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self._place = {"TIDEMILL_DATABASE_URL": database_url, "TIDEMILL_DIRECTORY": str(folder / "data")}
        self._more = {"HARBOUR_LIVE": f"127.0.0.1:{free_port()}", **self._place}
        self._keys = {KEYS: new_key()}
        self._all = Process("up", str(APP), "--no-server", folder=folder, more=self._more)
        self._server: Process | None = None
        wait_until(self._works, lambda: f"workers have started; said: {self._heard()}")

    def serve(self, *options: str) -> None:
        """Start the server and wait until it answers."""
        words = ("server", str(APP), "--port", str(self.port), *trusting(options))
        self._server = Process(*words, folder=self.folder, more=self._more | self._keys)
        wait_until(self._answers, lambda: f"the server answers; said: {self._heard()}")

    def stop_server(self) -> None:
        assert self._server is not None
        self._server.stop()

    def close(self) -> None:
        for process in (self._server, self._all):
            if process is not None:
                process.stop()

    def run(self, *words: str) -> str:
        """Run a `tidemill` command against this application's database."""
        done = run(self.folder, *words, **self._place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def api(self, path: str, body: Any = None) -> Any:
        """Send a request to the API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def enqueue(self, task: str, **args: Any) -> int:
        return self.api("/jobs", {"task": task, "args": args})["id"]

    def start(self, workflow: str, **args: Any) -> int:
        return self.api("/runs", {"workflow": workflow, "args": args})["id"]

    def write(self, name: str, **line: Any) -> None:
        """Append a line to the file of a stream or monitor source."""
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def job_ends(self, number: int) -> dict[str, Any]:
        """Wait until a job has finished and return it."""
        done = ("succeeded", "failed", "cancelled")
        return wait_until(lambda: (job := self.api(f"/jobs/{number}"))["state"] in done and job, f"job {number} ends")

    def run_is(self, number: int, state: str) -> dict[str, Any]:
        """Wait until a run is in a state and return it."""
        return wait_until(lambda: (run := self.api(f"/runs/{number}"))["state"] == state and run, f"r{number} {state}")

    def asks(self, number: int) -> dict[str, Any]:
        """Wait until a run asks a question and return it."""
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
    """An application started with `tidemill up`, for the duration of a `with` block."""

    def __init__(self, app: Path, folder: Path, *options: str, python: Path | None = None) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        words = options or ("--directory", str(folder / "data"))
        words = ("--trust-local", *words)
        self._process = Process("up", str(app), "--port", str(self._port), *words, folder=folder, python=python)
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
        """Send a request to the API, or to a page if the path starts with /pages."""
        data = None if body is None else json.dumps(body).encode()
        place = path if path.startswith("/pages/") else f"/api/v1{path}"
        request = urllib.request.Request(f"{self.url}{place}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def heard(self) -> str:
        """Return the last lines of the output."""
        return "".join(self._process.said[-30:])

    def _answers(self) -> bool:
        with contextlib.suppress(OSError, urllib.error.URLError):
            return self.api("/health")["ok"]
        return False


class Watched:
    """A browser page that collects console errors and requests to other origins."""

    #: Errors that the browser reports while the server is down.
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
        """Open a path and wait for its heading."""
        self.page.goto(self.url + path)
        if heading is not None:
            expect(self.page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        return self.page

    def keep(self, name: str) -> None:
        """Save a screenshot, if there is a folder for them."""
        keep_screenshot(self.page, name)

    def read_by_all(self, screens: dict[str, str]) -> dict[str, list[str]]:
        """Check screens in each look; return the problems of each screen."""
        problems: dict[str, list[str]] = {}
        for name, path in screens.items():
            self.open(path)
            expect(self.page.get_by_role("heading", level=1)).to_be_visible()
            expect(self.page.locator(".loading")).to_have_count(0)
            if found := self.seen_by_all(name):
                problems[name] = found
        return problems

    def loads_and_fails(self, screens: dict[str, str]) -> None:
        """Check that a screen says that it loads, and why loading failed, but not that there is nothing."""
        held: list[Route] = []
        failing = False

        def answer(route: Route) -> None:
            if failing:
                body = '{"detail": "the disk is full"}'
                route.fulfill(status=500, content_type="application/problem+json", body=body)
            else:
                held.append(route)

        for name, path in screens.items():
            failing = False
            self.page.route(re.compile(r"/api/v1/(?!session\b|changes|pages)"), answer)
            self.open(path)
            expect(self.page.locator("main .loading").first).to_be_visible()
            assert self.page.locator("main .empty").count() == 0, f"{name} says that it is empty while it loads"
            failing = True
            for route in held:
                answer(route)
            held.clear()
            expect(self.page.get_by_role("alert").first).to_contain_text("the disk is full")
            assert self.page.locator("main .empty").count() == 0, (
                f"{name} says that it is empty although loading failed"
            )
            self.page.unroute_all(behavior="ignoreErrors")
        self.wrong = [each for each in self.wrong if "500" not in each]

    def seen_by_all(self, name: str) -> list[str]:
        """Check the open page in each look, with a screenshot of each; return the problems."""
        found: list[str] = []
        for called, look in LOOKS.items():
            self.page.emulate_media(color_scheme=look.theme)
            self.page.set_viewport_size({"width": look.width, "height": look.height})
            self.page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=look.theme)
            self.page.evaluate(TWO_FRAMES)
            self.keep(f"{name}-{called}")
            wrong = [] if look.asked is None else self.serious_problems(look.asked)
            if self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
                wrong.append("the page is wider than the window")
            found += [f"{called}: {each}" for each in (*wrong, *self.page.evaluate(CUT_OFF))]
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size(WIDE)
        return found

    def serious_problems(self, asked: dict[str, Any] | None = None) -> list[str]:
        """Return the serious accessibility problems that axe-core finds."""
        # Injected with the debugger, because the content security policy refuses other scripts.
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


def keep_screenshot(page: Page, name: str) -> None:
    """Save a screenshot of a page, if there is a folder for them."""
    if ARTEFACTS:
        page.screenshot(path=Path(ARTEFACTS) / f"{name}.png")


@contextlib.contextmanager
def watched_page(browser: Browser, url: str, **options: Any) -> Iterator[Watched]:
    """A page that must not log errors or send requests to other origins."""
    context = browser.new_context(viewport=WIDE, reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE * 1000)
    watched = Watched(context, url)
    try:
        yield watched
    finally:
        context.close()
    assert watched.wrong == [], watched.wrong


@contextlib.contextmanager
def harbour(database_url: str) -> Iterator[Harbour]:
    """Run the application in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="tidemill-console-") as folder:
        made = Harbour(Path(folder), database_url)
        try:
            made.serve()
            wait_until(lambda: made.api("/overview")["counts"]["workers_alive"] >= 2, "workers are alive")
            yield made
        finally:
            made.close()


def wait_until(condition: Callable[[], Any], what: str | Callable[[], str], timeout: float = PATIENCE) -> Any:
    """Wait for a condition and return its first truthy value."""
    give_up = time.monotonic() + timeout
    while not (seen := condition()):
        if time.monotonic() > give_up:
            raise AssertionError(f"not within {timeout:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(0.05)
    return seen
