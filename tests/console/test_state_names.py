"""Any name that a file can have comes back as itself over HTTP and in the console, in a real Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Browser, expect

from tests.support.console import Site, Watched, wait_until, watched_page

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

APP = """
from tidemill import App
from tidemill.pipelines import Pipeline

app = App("names")
p = Pipeline("p", root="states", approve_above=None)


@p.stage(input="in/{id}.txt", output="mid/{id}.txt", in_process=True)
def first(entity, text: bytes):
    return b"of " + text


@p.stage(input="mid/{id}.txt", output="out/{id}.txt", in_process=True)
def second(entity, text: bytes):
    return text + b"!"


app.pipeline(p)
"""

#: Names that break what is not encoded once, and only once: in paths, queries, patterns, markup, or when normalised.
KNOWN = [
    "a%20b", "a%2520b", "100%", "%", "%%s", "a b", " a ", "it's", 'say "x"', "line\nbreak", "a\\b", "ü", "u\u0308",
    "日本", "😀", "-rf", "*", "{y}", "#1", "?q=1&r#", "a+b", "a;b", "<b>&amp;", "a:b", "null", "007", "a..b",
    "n" * 200, "@me",
]  # fmt: skip
SHOWN = ["a%20b", 'say "x"', "u\u0308", "?q=1&r#", "<b>&amp;"]


def is_legal(name: str) -> bool:
    """Whether a file of this name can exist, and is not hidden."""
    return "/" not in name and "\0" not in name and name[0] != "." and 0 < len(name.encode()) <= 200


def invent_names(many: int) -> list[str]:
    """Names of any characters, the same at every run."""
    chance, found = Random(7), list[str]()
    while len(found) < many:
        codes = [chance.choice([chance.randrange(1, 128), chance.randrange(128, 0xD800)]) for _ in range(12)]
        if is_legal(name := "".join(map(chr, codes))):
            found.append(name)
    return found


class Names(Site):
    """An application with a state for each name."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.names = list(dict.fromkeys([*KNOWN, *invent_names(10)]))
        (folder / "app.py").write_text(APP)
        (folder / "states/in").mkdir(parents=True)
        for name in self.names:
            (folder / f"states/in/{name}.txt").write_text(name)
        super().__init__(folder / "app.py", folder, "--database-url", database_url)

    def is_built(self) -> bool:
        return self.api("/pipelines/p")["counts"] == {"fresh": 2 * len(self.names)}


@pytest.fixture(scope="module")
def site(module_database_url: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Names]:
    site = Names(tmp_path_factory.mktemp("names"), module_database_url)
    with site:
        wait_until(site.is_built, "every name has its states")
        yield site


@pytest.fixture
def console(browser: Browser, site: Names) -> Iterator[Watched]:
    with watched_page(browser, site.url) as watched:
        yield watched


def test_every_name_comes_back_as_itself_over_http(site: Names) -> None:
    grid = site.api(f"/pipelines/p/grid?{urlencode({'by': 'id', 'limit': 200})}")
    assert {row["entity"] for row in grid["items"]} == set(site.names)
    for name in site.names:
        state = site.api(f"/pipelines/p/state?{urlencode({'stage': 'second', 'entity': name})}")
        assert (state["state"], state["entity"], state["outputs"][0]["path"]) == ("fresh", name, f"out/{name}.txt")
        assert state["inputs"][0]["path"] == f"mid/{name}.txt"
        content = site.api(f"/pipelines/p/content?{urlencode({'path': f'out/{name}.txt'})}")
        assert (content["path"], content["text"]) == (f"out/{name}.txt", f"of {name}!")
        told = site.api(f"/explain/{quote(f'out/{name}.txt')}")
        assert (told["state"], told["details"]["entity"]) == ("fresh", name)
        change = site.api(f"/lineage/change?{urlencode({'what': f'in/{name}.txt'})}")
        assert change["states"] == 2, name
        again = site.api("/pipelines/p/invalidate/preview", {"stage": "first", "entities": [name], "downstream": True})
        assert (again["count"], again["sample"]) == (2, [f"first/{name}", f"second/{name}"])


def test_names_are_shown_as_they_are_and_lead_from_state_to_state(site: Names, console: Watched) -> None:
    for name in SHOWN:
        page = console.open(f"/pipelines/p?{urlencode({'stage': 'second', 'entity': name})}", "p")
        panel = page.get_by_role("complementary", name=f"second of {name}", exact=True)
        expect(panel.get_by_text("It is up to date", exact=False)).to_be_visible()
        expect(panel.get_by_label(f"Content of out/{name}.txt", exact=True)).to_have_text(f"of {name}!")
        panel.get_by_role("link", name=f"first / {name}", exact=True).click()
        before = page.get_by_role("complementary", name=f"first of {name}", exact=True)
        expect(before.get_by_label(f"Content of mid/{name}.txt", exact=True)).to_have_text(f"of {name}")
