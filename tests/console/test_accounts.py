"""The console of a team: log-in at an identity provider, sessions and tokens, and what a role may not do."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.console import keep_screenshot
from tests.support.oidc import Provider, provider
from tests.support.server import TestServer
from tests.support.web import LOGIN_NEEDED, WebServer

pytestmark = pytest.mark.long


class Team:
    """A server whose users log in at a provider."""

    def __init__(self, web: WebServer, running: Provider) -> None:
        self.web = web
        self.provider = running

    def enter(self, context: BrowserContext, sub: str, path: str = "/accounts") -> Page:
        """Log a user in, by the button and the provider's form."""
        page = context.new_page()
        page.goto(self.web.url + path)
        page.get_by_role("link", name="Log in with Harbour ID").click()
        page.locator("input[name=sub]").fill(sub)
        page.get_by_role("button", name="Authorize").click()
        return page


@pytest.fixture(scope="module")
def team(server: TestServer) -> Iterator[Team]:
    with provider() as running:
        url = server.create()
        rules = ("--oidc-role=groups=crew:viewer", "--oidc-role=groups=captains:admin")
        options = (f"--oidc-issuer={running.url}", "--oidc-client-id=mill", "--oidc-label=Harbour ID", *rules)
        web = WebServer(url, LOGIN_NEEDED, f"--oidc-client-secret-file={running.secret_file}", *options)
        asyncio.run(web.wait_ready())
        running.set_user("ann", groups=["captains"], preferred_username="ann")
        running.set_user("ben", groups=["crew"], preferred_username="ben")
        running.set_user("eve", groups=["pirates"], preferred_username="eve")
        yield Team(web, running)
        web.close()
        server.drop(url)


@pytest.fixture(scope="module")
def started(team: Team, browser: Browser) -> Browser:  # The server first: waiting for it needs an event loop.
    return browser


def test_users_log_in_at_the_provider_and_see_what_their_role_allows(team: Team, started: Browser) -> None:
    crew, captains = started.new_context(), started.new_context(viewport={"width": 1440, "height": 900})
    ben = team.enter(crew, "ben")
    expect(ben.get_by_role("heading", level=1, name="Accounts")).to_be_visible()
    assert ben.url == f"{team.web.url}/accounts", "the page that was asked for"
    expect(ben.get_by_text("Tokens need the role admin")).to_be_visible()
    expect(ben.get_by_role("button", name="Create token")).to_have_count(0)
    own = ben.get_by_role("region", name="Sessions").get_by_role("row").filter(has_text="this browser")
    expect(own).to_contain_text("viewer")
    ann = team.enter(captains, "ann")
    rows = ann.get_by_role("region", name="Sessions").get_by_role("row")
    expect(rows.filter(has_text="ben")).to_be_visible()
    expect(ann.get_by_role("button", name="Create token")).to_be_visible()
    keep_screenshot(ann, "accounts-team")
    ann.get_by_role("button", name=re.compile("End session .* of ben")).click()
    ann.get_by_role("dialog").get_by_role("button", name="End session").click()
    expect(rows.filter(has_text="ben")).to_have_count(0)
    ben.reload()
    expect(ben.get_by_role("link", name="Log in with Harbour ID")).to_be_visible()
    ann.get_by_role("button", name="Log out").click()
    expect(ann.get_by_role("link", name="Log in with Harbour ID")).to_be_visible()
    keep_screenshot(ann, "login-oidc")
    crew.close()
    captains.close()


def test_a_user_without_a_role_is_told_so_and_a_refusal_too(team: Team, started: Browser) -> None:
    context = started.new_context()
    eve = team.enter(context, "eve")
    expect(eve.get_by_role("alert")).to_contain_text("has no role in this application")
    eve.get_by_role("link", name="Log in with Harbour ID").click()
    eve.get_by_role("button", name="Deny").click()
    expect(eve.get_by_role("alert")).to_contain_text(re.compile("refused the log-in|took too long"))
    context.close()
