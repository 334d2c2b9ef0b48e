"""What keeps strangers out: tokens, log-ins, pages of other origins, names of other hosts, sizes; and what is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.support.operate import create_token, revoke_token
from tests.support.server import TestServer, private_server
from tests.support.waiting import eventually
from tests.support.web import LOGIN_NEEDED, WebServer, web_server
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import migrate


@pytest.fixture
async def token(database: Database) -> str:
    return (await create_token(database, "ops", "operator", by="test"))[0]


@pytest.fixture
async def guarded(database_url: str, token: str) -> AsyncIterator[WebServer]:
    """A server that asks for tokens, for a test that changes something about it."""
    async with web_server(database_url, LOGIN_NEEDED) as running:
        yield running


def shared(server: TestServer, *options: str) -> Iterator[WebServer]:
    url = server.create()
    asyncio.run(give_token(url))
    web = WebServer(url, *options)
    asyncio.run(web.wait_ready())
    yield web
    web.close()
    server.drop(url)


async def give_token(url: str) -> None:
    """Add an account: a server that no account can log in to does not start."""
    async with Database(DatabaseSettings(url=url)) as database:
        await create_token(database, "ops", "operator", by="test")


@pytest.fixture(scope="module")
def site(server: TestServer) -> Iterator[WebServer]:
    """A server without log-in, for all tests that only read."""
    yield from shared(server)


@pytest.fixture(scope="module")
def door(server: TestServer) -> Iterator[WebServer]:
    """A server that asks for tokens, for all tests that are not let in."""
    yield from shared(server, LOGIN_NEEDED)


JOB = {"task": "send", "args": {"order": 1}}


# -- where it listens -----------------------------------------------------------------------------


def test_it_listens_at_this_machine_only_unless_told(site: WebServer) -> None:
    assert site.url.startswith("http://127.0.0.1:")


async def test_it_does_not_serve_other_machines_without_tls_or_an_explicit_wish(database_url: str) -> None:
    web = WebServer(database_url, "--host=0.0.0.0")
    try:
        assert await web.ends() != 0
        assert "--tls-cert" in web.said
    finally:
        web.close()


async def test_it_does_not_serve_other_machines_while_nobody_could_log_in(database_url: str) -> None:
    web = WebServer(database_url, "--host=0.0.0.0", "--plain-http")
    try:
        assert await web.ends() != 0
        assert "tidemill token create" in web.said
    finally:
        web.close()


async def test_where_other_machines_come_in_this_one_needs_a_token_too(database_url: str, token: str) -> None:
    async with web_server(database_url, "--host=0.0.0.0", "--plain-http") as web:
        web.url = f"http://127.0.0.1:{web.port}"
        async with web.client() as stranger, web.client(token) as ops:
            assert (await stranger.get("/jobs")).status_code == 401
            assert (await ops.get("/jobs")).status_code == 200


async def test_a_port_that_is_taken_is_told_so(site: WebServer, database_url: str) -> None:
    second = WebServer(database_url, f"--port={site.port}")
    third = WebServer(database_url, f"--port={site.port}", "--or-any-port")
    try:
        assert await second.ends() != 0
        assert "another process listens there" in second.said
        await third.wait_ready()
        assert third.port != site.port
    finally:
        second.close()
        third.close()


# -- tokens ---------------------------------------------------------------------------------------


async def test_a_token_is_told_once_and_kept_as_a_hash(database_url: str, database: Database) -> None:
    async with web_server(database_url) as web, web.client() as api:
        made = (await api.post("/tokens", json={"name": "ci", "role": "viewer"})).json()
        listed = (await api.get("/tokens")).text
        assert made["secret"] not in web.said
    assert made["secret"] not in listed
    rows = await database.fetch("SELECT t::text AS text FROM tidemill.token AS t")
    trail = await database.fetch("SELECT a::text AS text FROM tidemill.audit AS a")
    assert all(made["secret"] not in row["text"] for row in (*rows, *trail))


async def test_a_revoked_or_expired_token_opens_nothing(database: Database, guarded: WebServer, token: str) -> None:
    secret, row = await create_token(database, "brief", "viewer", by="test", expires_in=3600)
    async with guarded.client(secret) as api, guarded.client(token) as ops:
        assert (await api.get("/jobs")).status_code == 200
        await database.fetch("UPDATE tidemill.token SET expires_at = now() - interval '1 s' WHERE id = $1", row["id"])
        assert (await ops.get("/jobs")).status_code == 200
    async with guarded.client(token) as ops:
        assert (await ops.get("/jobs")).status_code == 200
    await revoke_token(database, 1, by="test")

    async def refused() -> bool:
        async with guarded.client(secret) as one, guarded.client(token) as two:
            return {(await one.get("/jobs")).status_code, (await two.get("/jobs")).status_code} == {401}

    await eventually(refused, interval=0.2)


@pytest.mark.parametrize("header", ["Bearer", "Bearer tm_wrong", "Basic abc", "tm_", "Bearer \xff", ""])
async def test_a_wrong_token_is_refused_however_it_is_wrong(door: WebServer, header: str) -> None:
    async with door.client() as api:
        response = await api.get("/jobs", headers=[(b"Authorization", header.encode("latin-1"))])
    assert response.status_code == 401


# -- browsers -------------------------------------------------------------------------------------


async def test_a_browser_logs_in_with_a_cookie_that_scripts_and_other_sites_cannot_use(
    guarded: WebServer, token: str
) -> None:
    async with guarded.client() as browser:
        assert (await browser.get("/session")).json()["authenticated"] is False
        entered = await browser.post("/session", json={"token": token})
        assert entered.status_code == 201, entered.text
        cookie = entered.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert token not in entered.text
        assert (await browser.get("/jobs")).status_code == 200
        csrf = (await browser.get("/session")).json()["csrf"]
        refused = await browser.post("/jobs", json=JOB)
        assert (refused.status_code, "X-CSRF-Token" in refused.text) == (403, True)
        wrong = await browser.post("/jobs", json=JOB, headers={"X-CSRF-Token": "0" * 64})
        assert wrong.status_code == 403
        assert (await browser.post("/jobs", json=JOB, headers={"X-CSRF-Token": csrf})).status_code == 201
        out = await browser.delete("/session", headers={"X-CSRF-Token": csrf})
        assert out.json()["authenticated"] is False
        assert (await browser.get("/jobs")).status_code == 401


async def test_over_tls_the_cookie_never_travels_without_it(database_url: str, token: str) -> None:
    async with web_server(database_url, "--behind-proxy") as web, web.client() as browser:
        entered = await browser.post("/session", json={"token": token})
        cookie = entered.headers["set-cookie"]
        assert cookie.startswith("__Host-tidemill=")
        assert "Secure" in cookie
        assert "max-age" in entered.headers["strict-transport-security"]


async def test_a_session_ends_with_its_token(database: Database, guarded: WebServer, token: str) -> None:
    async with guarded.client() as browser:
        await browser.post("/session", json={"token": token})
        assert (await browser.get("/jobs")).status_code == 200
        await revoke_token(database, 1, by="test")
        assert (await database.fetch("SELECT count(*) AS n FROM tidemill.session"))[0]["n"] == 0


async def test_a_cookie_that_was_made_up_opens_nothing(door: WebServer) -> None:
    async with door.client(cookies={"tidemill": "made-up"}) as browser:
        assert (await browser.get("/jobs")).status_code == 401


async def test_guessing_tokens_is_slowed_down(guarded: WebServer, token: str) -> None:
    async with guarded.client() as browser:
        codes = [(await browser.post("/session", json={"token": f"tm_{n}"})).status_code for n in range(12)]
        assert codes[:10] == [401] * 10
        assert codes[10:] == [429, 429]
        right = await browser.post("/session", json={"token": token})
        assert right.status_code == 429
        assert int(right.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_another_origin_changes_nothing_even_without_a_login(
    site: WebServer, headers: dict[str, str]
) -> None:
    async with site.client() as api:
        before = (await api.get("/jobs")).json()["items"]
        response = await api.post("/jobs", json=JOB, headers=headers)
        assert response.status_code == 403, response.text
        own = await api.post("/jobs", json=JOB, headers={"Origin": site.url, "Sec-Fetch-Site": "same-origin"})
        assert own.status_code == 201
        assert len((await api.get("/jobs")).json()["items"]) == len(before) + 1


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]", "a b", ""])
async def test_another_name_for_this_machine_is_refused(site: WebServer, host: str) -> None:
    async with site.client() as api:
        response = await api.get("/jobs", headers={"Host": host})
        assert response.status_code in (400, 421), response.text
        assert (await api.get("/jobs", headers={"Host": f"localhost:{site.port}"})).status_code == 200


async def test_no_answer_lets_a_page_load_or_run_anything_foreign(guarded: WebServer, token: str) -> None:
    async with guarded.client(token) as api, guarded.client() as stranger:
        answers = [await api.get("/jobs"), await api.get("/nothing"), await stranger.get("/jobs")]
        answers += [await api.post("/jobs", json={}), await api.get("/schema/openapi.json"), await api.get("/metrics")]
        answers.append(await api.get("/jobs", headers={"Host": "evil.example"}))
        async with api.stream("GET", "/changes") as stream:
            answers.append(stream)
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "*" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "server" not in answer.headers


# -- sizes and secrets ----------------------------------------------------------------------------


async def test_a_request_that_is_too_large_is_refused_before_it_is_read(site: WebServer) -> None:
    async with site.client() as api:
        large = json.dumps({"task": "send", "args": {"order": 1}, "unique_key": "x" * 2_000_000})
        assert (await api.post("/jobs", content=large)).status_code == 413

        async def in_pieces() -> AsyncIterator[bytes]:
            for _ in range(40):
                yield b"x" * 50_000

        assert (await api.post("/jobs", content=in_pieces())).status_code == 413
        assert (await api.post("/jobs", json=JOB)).status_code == 201
        for head in (b"y" * 60_000 + b"\r\n\r\n", b"y" * 5_000_000):  # the second without an end
            assert await _asked(site, b"X: " + head) in (b"HTTP/1.1 431", b""), "it is cut off"
        assert (await api.get("/health")).status_code == 200


async def _asked(web: WebServer, rest: bytes) -> bytes:
    """The first bytes of the answer to a request with these headers; nothing if the server hung up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    try:
        writer.write(b"GET /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n" + rest)
        async with asyncio.timeout(120):
            await writer.drain()
            return await reader.read(12)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_secrets_are_in_no_log_and_no_problem(guarded: WebServer, token: str) -> None:
    wrong = "tm_a-secret-that-somebody-mistyped"
    async with guarded.client(token) as api, guarded.client(wrong) as stranger, guarded.client() as browser:
        said = [
            await api.post("/jobs", json=JOB),
            await stranger.post("/jobs", json=JOB),
            await browser.post("/session", json={"token": wrong}),
            await browser.post("/session", json={"token": wrong, "more": 1}),
            await browser.post("/session", json={"token": token}),
        ]
    for text in (guarded.said, *(response.text for response in said)):
        assert token not in text
        assert wrong not in text


async def test_every_action_is_written_down_with_who_and_how_it_was(guarded: WebServer, token: str) -> None:
    async with guarded.client(token) as api:
        await api.post("/jobs", json=JOB)
        await api.post("/jobs/cancel", json={"ids": [1]})
        await api.put("/queues/mail/limit", json={"rate": "5/s"})
        await api.post("/queues/mail/pause")
        await api.post("/workers/control", json={"mode": "drain", "host": "h"})
        made = await api.post("/runs", json={"workflow": "order", "args": {"order": 1}})
        await api.post(f"/runs/{made.json()['id']}/cancel", json={"reason": "enough"})
        entries = (await api.get("/audit")).json()["items"]
    actions = ["run.cancel", "run.start", "worker.drain", "worker.pause", "queue.limit", "job.cancel", "job.enqueue"]
    assert [entry["action"] for entry in entries if entry["who"] not in ("test", "server")] == actions
    assert {entry["who"] for entry in entries} == {"ops (token 1)", "test", "server"}, "the server made its log-in link"
    limit = next(entry for entry in entries if entry["action"] == "queue.limit")
    assert (limit["before"], limit["after"]) == ({"rate": None}, {"rate": 5.0})
    assert entries[0]["before"] == {"state": "running"}


async def test_a_stopping_server_lets_streams_go_and_ends(database_url: str) -> None:
    async with web_server(database_url) as web, web.client() as api, api.stream("GET", "/changes") as stream:
        assert stream.status_code == 200
        web.terminate()
        assert await web.ends() == 0


async def test_without_the_database_it_says_so_and_goes_on_when_it_is_back() -> None:
    with private_server() as embedded:
        async with Database(DatabaseSettings(url=embedded.dsn)) as database:
            await migrate(database)
        async with web_server(embedded.dsn) as web, web.client() as api:
            assert (await api.get("/health")).json() == {"ok": True}
            embedded.stop()
            asked = (api.get("/health"), api.get("/jobs"), api.post("/jobs", json=JOB))
            for away in await asyncio.gather(*asked):
                assert (away.status_code, away.headers["content-type"]) == (503, "application/problem+json")
            embedded.ensure()

            async def back() -> bool:
                return (await api.post("/jobs", json=JOB)).status_code == 201

            await eventually(back)
