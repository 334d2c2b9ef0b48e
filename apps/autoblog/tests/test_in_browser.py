"""The blog as a reader gets it, and its page in the console, in a real browser."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, ViewportSize, expect

from tests.support.console import ROOT, WIDE, Site, keep_screenshot, wait_until, watched_page

pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

APP = ROOT / "apps" / "autoblog" / "app.py"
PHONE: ViewportSize = {"width": 390, "height": 844}
#: Whether something is wider than the window.
TOO_WIDE = "() => document.documentElement.scrollWidth > innerWidth + 1"


class Blog(Site):
    """The application at work on a few days of logs."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.root = folder / "output"
        command = [sys.executable, "-m", "apps.autoblog.logs", str(self.root), "--days", "3"]
        subprocess.run(command, cwd=ROOT, check=True)
        self.days = sorted(each.name for each in (self.root / "daily").iterdir())
        super().__init__(APP, folder, "--database-url", database_url)

    def is_built(self) -> bool:
        counts = [self.api(f"/pipelines/{name}")["counts"] for name in ("auto-blog", "daily-podcast")]
        return all(each.keys() == {"fresh"} for each in counts)


@pytest.fixture(scope="module")
def blog(module_database_url: str, browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Blog]:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("blog")
        patch.setenv("AUTOBLOG_ROOT", str(folder / "output"))
        for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "AUTOBLOG_VOICE"):
            patch.delenv(name, raising=False)
        blog = Blog(folder, module_database_url)
        with blog:
            wait_until(blog.is_built, "everything is built")
            yield blog


def test_a_reader_finds_the_posts_reads_them_and_follows_the_feed(blog: Blog, browser: Browser) -> None:
    looks: list[tuple[Literal["light", "dark"], ViewportSize]] = [("light", WIDE), ("dark", PHONE)]
    for theme, size in looks:
        context = browser.new_context(color_scheme=theme, viewport=size)
        page = context.new_page()
        wrong: list[str] = []
        page.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
        page.goto((blog.root / "site/index.html").as_uri())
        expect(page.get_by_role("heading", level=1, name="Daily digest")).to_be_visible()
        posts = page.locator(".posts li")
        expect(posts).to_have_count(len(blog.days))
        assert [each.get_attribute("datetime") for each in posts.locator("time").all()] == blog.days[::-1]
        keep_screenshot(page, f"blog-index-{theme}")
        posts.first.get_by_role("link").click()
        expect(page.get_by_role("heading", level=1)).not_to_be_empty()
        expect(page.locator("article p").first).not_to_be_empty()
        assert not page.evaluate(TOO_WIDE)
        keep_screenshot(page, f"blog-post-{theme}")
        page.get_by_role("link", name="Daily digest").click()
        assert page.locator("link[type='application/atom+xml']").get_attribute("href") == "feed.xml"
        assert page.get_by_role("link", name="Feed").get_attribute("href") == "feed.xml"
        assert not page.evaluate(TOO_WIDE)
        assert wrong == []
        context.close()
    assert (blog.root / "site/feed.xml").read_text().count("<entry>") == len(blog.days)


def test_its_owner_sees_site_and_states_side_by_side_and_a_changed_log_at_once(blog: Blog, browser: Browser) -> None:
    with watched_page(browser, blog.url) as watched:
        page = watched.open("/pages/blog/", "Blog")
        site = page.get_by_role("region", name="Site", exact=True)
        expect(site.get_by_role("heading", level=1, name="Daily digest")).to_be_visible()
        day = blog.days[-1]
        expect(page.get_by_role("link", name=f"post of {day}: fresh")).to_be_visible()
        page.get_by_role("button", name=day).click()
        expect(site.locator(f"time[datetime='{day}']")).to_be_visible()
        watched.keep("blog-page")
        log = next((blog.root / "daily" / day).iterdir())
        log.write_text("09:00 INFO The harbour master has ordered a new mill wheel of oak.\n" * 3)
        for other in (blog.root / "daily" / day).iterdir():
            if other != log:
                other.unlink()
        expect(site.get_by_text("new mill wheel of oak", exact=False).first).to_be_visible()
        site.get_by_role("button", name="Front page").click()
        expect(site.locator(".posts li")).to_have_count(len(blog.days))
        site.locator(".posts a").last.click()
        expect(site.locator(f"time[datetime='{blog.days[0]}']")).to_be_visible()
        page.set_viewport_size(PHONE)
        assert not page.evaluate(TOO_WIDE)
        watched.keep("blog-page-phone")
        page.get_by_role("link", name=f"post of {day}: ").click()
        expect(page).to_have_url(re.compile(r"/pipelines/auto-blog\?stage=post"))
