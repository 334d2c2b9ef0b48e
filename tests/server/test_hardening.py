"""What a stranger, a page of another site or a holder of the weakest token tries: one server withstands it all."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.support.grpcclient import rpc_client
from tests.support.operate import create_token
from tests.support.ports import free_port
from tests.support.server import TestServer
from tests.support.waiting import eventually
from tests.support.web import API, WebServer
from tests.support.web_app import Asking, make_app
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError
from tidemill.server.live.hub import MOST_EACH
from tidemill.server.routes import run_stream
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings, check_proxies
from tidemill.store.database import Database, DatabaseSettings

APP = """
from tests.support.web_app import make_app

app = make_app(workflow_folder={folder!r})
"""

PROXY = "127.0.0.9"
"""Where the proxy asks from: this machine, by another of its addresses."""


class Place:
    """A server behind a proxy, and clients of every role."""

    def __init__(self, web: WebServer, grpc: str, dsn: str, tokens: dict[str, str]) -> None:
        self.web = web
        self.grpc = grpc
        self.dsn = dsn
        self.tokens = tokens

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.web.port}"

    def ask(self, method: str, path: str, body: Any = None, role: str | None = "viewer", **headers: str) -> Any:
        """Ask the API, or with a path that begins with two slashes the site."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if role is not None:
            named["Authorization"] = f"Bearer {self.tokens[role]}"
        url = self.site + (path[1:] if path.startswith("//") else API + path)
        return httpx.request(method, url, json=body, headers=named, timeout=150)

    def check(self, text: str) -> list[str]:
        answer = self.ask("POST", "/workflow-files/check", {"path": "a.yaml", "text": text})
        assert answer.status_code == 200, answer.text
        return [each["message"] for each in answer.json()["problems"]]


@pytest.fixture(scope="module")
def place(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("hardened")
    (folder / "app.py").write_text(APP.format(folder=str(folder)))
    url, address = server.create(), f"127.0.0.1:{free_port()}"
    tokens = asyncio.run(make_tokens(url))
    options = ("--host=0.0.0.0", "--behind-proxy", f"--proxy={PROXY}", "--name=Mill.Example.org", f"--grpc={address}")
    web = WebServer(url, *options, app=folder / "app.py")
    try:
        asyncio.run(web.wait_ready())
        yield Place(web, address, url, tokens)
    finally:
        web.close()
        server.drop(url)


async def make_tokens(url: str) -> dict[str, str]:
    async with Database(DatabaseSettings(url=url)) as database:
        roles = {"viewer": "viewer", "crowd": "viewer", "operator": "operator", "admin": "admin"}
        made = {name: await create_token(database, name, scope, by="test") for name, scope in roles.items()}  # pyright: ignore[reportArgumentType]
        return {name: secret for name, (secret, _) in made.items()}


async def rows(place: Place, query: str) -> list[Any]:
    async with Database(DatabaseSettings(url=place.dsn)) as database:
        return list(await database.fetch(query))


# -- texts and addresses that nobody means well with ----------------------------------------------


def test_merge_keys_that_multiply_are_refused_before_they_are_merged(place: Place) -> None:
    levels = ["a0: &a0 {k: 1}"]
    levels += [f"a{at}: &a{at} {{<<: [{', '.join([f'*a{at - 1}'] * 9)}]}}" for at in range(1, 7)]
    assert "expands into millions of parts" in place.check("\n".join(levels))[0]
    nested = "x: " + "{<<: " * 60 + "{" + ", ".join(f"k{at}: 1" for at in range(3000)) + "}" + "}" * 60
    assert "expands into millions of parts" in place.check(nested)[0]
    wide = "b: &b\n" + "".join(f"  k{at}: 1\n" for at in range(2000))
    wide += f"m: &m {{<<: *b}}\nl: [{', '.join(['*m'] * 999)}]"
    assert "expands into millions of parts" in place.check(wide)[0]
    assert "a key is not a string" in place.check("a: &a {k: 1}\nx: {<<: {? {<<: *a} : 1}}")[0]
    usual = "name: n\nnodes:\n- &a {name: a, task: send, queue: mail}\n- {<<: *a, name: b}\n- {<<: [*a, *a], name: c}\n"
    assert place.check(usual) == []


@pytest.mark.parametrize(
    "value",
    ["!!int abc", "9" * 5000, "!!bool zz", "!!float abc", "!!timestamp x", "!!timestamp 2001-99-99", '"\\UFFFFFFFF"'],
)
def test_a_value_that_is_not_what_it_says_is_a_problem_of_the_text(place: Place, value: str) -> None:
    (told,) = place.check(f"name: n\nsize: {value}\n")
    assert told.startswith("this is not YAML")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (f"/changes?topic=run:{'9' * 5000}", 422),
        (f"//{'x' * 300}", 200),
        (f"//{'x' * 300}.js", 404),
        (f"//assets/{'x' * 5000}", 200),
        (f"/workflow-files/{'x' * 290}.yaml", 422),
    ],
)
def test_an_address_that_nothing_can_have_is_answered_as_any_other(place: Place, path: str, status: int) -> None:
    answer = place.ask("GET", path)
    assert answer.status_code == status, answer.text


def test_a_number_of_thousands_of_digits_is_not_shown(place: Place) -> None:
    huge = "Number('9'.repeat(4000)) * Number('9'.repeat(4000))"
    nodes = [
        {"id": "a", "typeId": "start", "name": "begin", "data": {}},
        {"id": "b", "typeId": "transform", "name": "huge", "data": {"expression": huge}},
        {"id": "c", "typeId": "set", "name": "told", "data": {"one": f"{{{{{huge}}}}}", "two": f"is {{{{{huge}}}}}"}},
    ]
    arrows = [{"sourceNodeId": "a", "targetNodeId": "b"}, {"sourceNodeId": "b", "targetNodeId": "c"}]
    text = json.dumps({"mode": "trigger", "nodes": nodes, "connections": arrows})
    tried = place.ask("POST", "/workflow-files/dry-run", {"path": "a.json", "text": text}, role="operator")
    assert tried.status_code == 200, tried.text
    assert "the result is not a number" in tried.text
    assert "999" not in tried.text


@pytest.mark.parametrize(
    ("request_line", "status"),
    [(f"GET {API}/health?{'x' * size} HTTP/1.1", 431) for size in (49_200, 70_000, 300_000)] + [("HELO mill", 400)],
    ids=["long", "too long for an address", "without an end", "none"],
)
def test_what_cannot_be_a_request_is_answered_with_a_problem(place: Place, request_line: str, status: int) -> None:
    with socket.create_connection(("127.0.0.1", place.web.port), timeout=150) as connection:
        connection.sendall(f"{request_line}\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        with connection.makefile("rb") as reading:
            head, _, told = reading.read().partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"application/problem+json" in head
    assert json.loads(told)["status"] == status


def test_a_head_is_asked_for_wherever_something_can_be_got(place: Place) -> None:
    whole, head = place.ask("GET", "/workers"), place.ask("HEAD", "/workers")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["etag"] == whole.headers["etag"]
    assert place.ask("HEAD", "/jobs", role=None).status_code == 401
    assert place.ask("HEAD", "//").headers["content-type"].startswith("text/html")
    stream = place.ask("HEAD", "/changes")
    assert (stream.status_code, stream.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")


def test_strangers_may_send_enough_to_log_in_and_not_more(place: Place) -> None:
    much = {"token": "x" * 20_000}
    refused = place.ask("POST", "/session", much, role=None)
    assert (refused.status_code, "before you log in" in refused.text) == (413, True)
    assert place.ask("POST", "/session", much, role="viewer").status_code == 401, "whoever has a token may send more"


# -- secrets --------------------------------------------------------------------------------------


def test_an_answer_with_a_secret_is_never_kept(place: Place) -> None:
    for path in ("/tokens", "/tokens/", f"/{API}//tokens"):
        answer = place.ask("POST", path, {"name": "kept", "role": "viewer"}, role="admin", Idempotency_Key="k")
        assert (answer.status_code, "never kept" in answer.text) == (422, True), answer.text
    entered = place.ask("POST", "/session", {"token": place.tokens["viewer"]}, role="admin", Idempotency_Key="k")
    assert entered.status_code == 422
    assert asyncio.run(rows(place, "SELECT 1 FROM tidemill.idempotency_key WHERE key = 'k'")) == []
    assert asyncio.run(rows(place, "SELECT 1 FROM tidemill.token WHERE name = 'kept'")) == []


def test_the_word_of_a_cookie_is_no_token_and_a_token_no_cookie(place: Place) -> None:
    cookie = _log_in(place)
    assert place.ask("GET", "/jobs", role=None, Cookie=f"__Host-tidemill={cookie}").status_code == 200
    assert place.ask("GET", "/jobs", role=None, Authorization=f"Bearer {cookie}").status_code == 401
    assert place.ask("GET", "/jobs").status_code == 200
    assert place.ask("GET", "/jobs", role=None, Cookie=f"__Host-tidemill={place.tokens['viewer']}").status_code == 401


def _log_in(place: Place, role: str = "operator") -> str:
    entered = place.ask("POST", "/session", {"token": place.tokens[role]}, role=None)
    assert entered.status_code == 201, entered.text
    return entered.cookies["__Host-tidemill"]


# -- who asks, and from where ---------------------------------------------------------------------


def test_behind_a_proxy_each_browser_has_its_own_log_ins_to_fail(place: Place) -> None:
    def enter(client: httpx.Client, browser: str) -> int:
        wrong = {"token": "tm_wrong"}
        return client.post(f"{API}/session", json=wrong, headers={"X-Forwarded-For": browser}).status_code

    transport = httpx.HTTPTransport(local_address=PROXY)
    with httpx.Client(base_url=place.site, transport=transport, timeout=150) as proxy:
        assert [enter(proxy, "192.0.2.1") for _ in range(11)] == [401] * 10 + [429]
        assert enter(proxy, "192.0.2.2") == 401
    transport = httpx.HTTPTransport(local_address="127.0.0.8")
    with httpx.Client(base_url=place.site, transport=transport, timeout=150) as stranger:
        codes = [enter(stranger, f"192.0.2.{number}") for number in range(11)]
        assert codes[-1] == 429, "nobody but the proxy is believed"


def test_names_are_the_same_in_small_and_large_letters(place: Place) -> None:
    cookie = f"__Host-tidemill={_log_in(place)}"
    for host in ("mill.example.org", "MILL.example.org", "Mill.Example.org:443"):
        assert place.ask("GET", "/jobs", Host=host).status_code == 200
    csrf = place.ask("GET", "/session", role=None, Cookie=cookie).json()["csrf"]
    asked = {"Cookie": cookie, "X_CSRF_Token": csrf, "Host": "MILL.example.org"}
    job = {"task": "send", "args": {"order": 1}}
    own = place.ask("POST", "/jobs", job, role=None, Origin="https://mill.example.org", **asked)
    assert own.status_code == 201, own.text
    for origin in ("https://evil.example.org", "https://[", "null"):
        assert place.ask("POST", "/jobs", job, role=None, Origin=origin, **asked).status_code == 403


@pytest.mark.parametrize("path", ["/jobs", f"/{API}/health", f"//{API}/jobs", "//pages/any/api/things"])
def test_a_page_of_another_site_is_told_nothing(place: Place, path: str) -> None:
    for site in ("cross-site", "same-site"):
        answer = place.ask("GET", path, role=None, Sec_Fetch_Site=site)
        assert (answer.status_code, "another site" in answer.text) == (403, True)
    assert place.ask("GET", path, role=None, Sec_Fetch_Site="same-origin").status_code != 403
    assert place.ask("GET", "//", role=None, Sec_Fetch_Site="cross-site").status_code == 200, "links lead here"


def test_who_is_believed_and_where_tls_ends_is_said_before_anything_listens() -> None:
    with pytest.raises(ConfigError, match="--proxy"):
        ServerSettings(host="10.0.0.5", behind_proxy=True).validate()
    with pytest.raises(ConfigError, match="--behind-proxy"):
        ServerSettings(proxies=("10.0.0.4",)).validate()
    with pytest.raises(ConfigError, match="not an address"):
        check_proxies(["10.0.0.4", "proxy.example"])
    assert check_proxies(["10.0.0.4", "10.1.0.0/16"]) == ("10.0.0.4", "10.1.0.0/16")
    assert ServerSettings(behind_proxy=True).validate().asks_login
    behind = {"behind_proxy": True, "proxies": ("10.0.0.4",), "grpc": "0.0.0.0:7434"}
    with pytest.raises(ConfigError, match="gRPC at"):
        ServerSettings(**behind).validate()
    assert ServerSettings(**behind, tls_cert="cert.pem", tls_key="key.pem").validate().asks_login
    assert ServerSettings(**behind, plain_http=True).validate().asks_login


# -- what is written down -------------------------------------------------------------------------


async def test_an_address_cannot_write_escape_codes_into_the_log(place: Place) -> None:
    place.ask("POST", "/queues/%1b[31mred/pause", role="admin")
    await eventually(lambda: "red/pause" in place.web.said)
    assert "/queues/%1b[31mred/pause" in place.web.said
    assert "\x1b[31mred" not in place.web.said


async def test_the_log_tells_how_a_call_over_grpc_has_ended_and_whose_it_was(place: Place) -> None:
    async with rpc_client(place.grpc, place.tokens["viewer"]) as reader, rpc_client(place.grpc) as stranger:
        assert (await reader.refused("Jobs", "EnqueueJob", task="send"))[0] is grpc.StatusCode.PERMISSION_DENIED
        assert (await stranger.refused("Jobs", "CancelJobs", ids=[1]))[0] is grpc.StatusCode.UNAUTHENTICATED

    def line(method: str) -> str:
        return next((each for each in place.web.said.splitlines() if f"method={method} " in f"{each} "), "")

    enqueued = await eventually(lambda: line("Jobs/EnqueueJob"))
    assert "status=PERMISSION_DENIED" in enqueued
    assert "viewer (token 1)" in enqueued
    assert "status=UNAUTHENTICATED" in await eventually(lambda: line("Jobs/CancelJobs"))


# -- connections ----------------------------------------------------------------------------------


async def test_a_token_has_only_so_many_streams_open(place: Place) -> None:
    ask = f"GET {API}/changes HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\n\r\n"
    opened: list[Any] = []

    async def status(name: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.web.port)
        opened.append(writer)
        writer.write((ask % place.tokens[name]).encode())
        async with asyncio.timeout(120):
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 200 " in head.partition(b"\r\n")[0]:
                await reader.readuntil(b"event: hello")
        return head[9:12]

    try:
        assert [await status("crowd") for _ in range(MOST_EACH)] == [b"200"] * MOST_EACH
        assert await status("crowd") == b"429"
        async with rpc_client(place.grpc, place.tokens["crowd"]) as crowd:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await crowd.many("Live", "WatchChanges").read()
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await status("viewer") == b"200"
        opened.pop(0).close()

        async def again() -> bool:
            return await status("crowd") == b"200"

        await eventually(again, what="a stream that was closed makes room")
    finally:
        for writer in opened:
            writer.close()


async def test_the_stream_of_a_run_breaks_off_after_a_while(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(database_url=database.settings.url)
    run = await app.start(Asking)
    server_state = ServerState(app, database, ServerSettings(trust_local=True))
    monkeypatch.setattr(run_stream, "LONGEST", 0.2)
    async with asyncio.timeout(120):
        shown = [each async for each in run_stream._follow(server_state, Caller("local", "admin"), run.id, 0)]
    assert set(shown) == {b": \n\n"}
    assert server_state.hub.watching == 0
    await app.close()
