"""One table, each cell run: every attacker against everything over HTTP, gRPC, commands, the socket and files.

The attackers: another user of this machine, a stranger in the network, holders of worthless tokens, accounts of each
role, the author of a page on another site, the author of the application's own page, the sender of a webhook, and the
author of a message. The rows are in `attack_table.py`; what is served or typed and has no row fails here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import hmac
import io
import json
import os
import re
import shlex
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from litestar.routes import HTTPRoute

from tests.invariants.attack_table import CLI, GRPC, HERE, HTTP, OPEN, PAGES, filled
from tests.support.grpcclient import rpc_client
from tests.support.operate import create_token, revoke_token
from tests.support.ports import free_port
from tests.support.server import TestServer
from tests.support.web import API, LOGIN_NEEDED, ROOT, WebServer
from tidemill.cli import main
from tidemill.core.accounts import ROLES
from tidemill.engine.application.load_app import load_app
from tidemill.server.app import build
from tidemill.server.rpc.methods import DESCRIPTORS, METHODS
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database, DatabaseSettings

APP = ROOT / "tests" / "support" / "attacked_app.py"
FOLDER = "ATTACKED_FOLDER"
OTHER_USER = 65534
REFUSED = (401, 403, 429)
HOOK_SECRET = "a secret of two services"
SECRET = "the administrator's secret"

#: Everything over HTTP, with the whole path.
EVERYTHING = {**{(method, API + path): role for (method, path), role in HTTP.items()}, **PAGES}


class Site:
    """One server with everything to attack, and a token for each account."""

    def __init__(self, server: TestServer, folder: Path) -> None:
        (folder / "page").mkdir()
        (folder / "page" / "index.html").write_text("<h1>Board</h1>")
        (folder / "secret.txt").write_text(SECRET)
        (folder / "page" / "link.txt").symlink_to(folder / "secret.txt")
        (folder / "workflows").mkdir()
        self.folder = folder
        self.database_url = server.create()
        self.grpc = f"127.0.0.1:{free_port()}"
        os.environ[FOLDER] = str(folder)
        os.environ["ATTACKED_HOOK"] = HOOK_SECRET
        self.web = WebServer(self.database_url, LOGIN_NEEDED, f"--grpc={self.grpc}", app=APP)
        asyncio.run(self.web.wait_ready())
        self.tokens: dict[str, str] = asyncio.run(self._make_tokens())

    def database(self) -> Database:
        return Database(DatabaseSettings(url=self.database_url, application="test"))

    async def _make_tokens(self) -> dict[str, str]:
        async with self.database() as database:
            other = "INSERT INTO tidemill.application (name, schema) VALUES ('other', 'tidemill_other')"
            await database.fetch(other)
            made = {role: (await create_token(database, role, role, by="test"))[0] for role in ROLES}
            revoked, row = await create_token(database, "revoked", "admin", by="test")
            await revoke_token(database, row["id"], by="test")
            foreign, _ = await create_token(database, "foreign", "admin", by="test", application="other")
            expired, row = await create_token(database, "expired", "admin", by="test", expires_in=3600)
            await database.fetch("UPDATE tidemill.token SET expires_at = now() WHERE id = $1", row["id"])
            return {**made, "revoked": revoked, "foreign": foreign, "expired": expired, "wrong": "tm_wrong"}

    def changes(self) -> int:
        """How many entries the audit trail has."""

        async def count() -> int:
            async with self.database() as database:
                return (await database.fetch("SELECT count(*) AS n FROM tidemill.audit"))[0]["n"]

        return asyncio.run(count())

    def log_in(self, client: httpx.Client, role: str) -> dict[str, Any]:
        response = client.post(f"{self.web.url}{API}/session", json={"token": self.tokens[role]})
        assert response.status_code == 201, response.text
        return response.json()


@pytest.fixture(scope="module")
def site(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    made = Site(server, tmp_path_factory.mktemp("attacked"))
    yield made
    made.web.close()
    server.drop(made.database_url)
    del os.environ[FOLDER], os.environ["ATTACKED_HOOK"]


def send(client: httpx.Client, site: Site, method: str, path: str, **headers: str) -> httpx.Response:
    """One request; of a stream only its head."""
    body = {} if method in ("POST", "PUT") else None
    with client.stream(method, site.web.url + filled(path), json=body, headers=headers) as response:
        if "event-stream" not in response.headers.get("content-type", ""):
            response.read()
        return response


def may(role: str | None, needed: str) -> bool:
    return needed == OPEN or (role is not None and ROLES.index(role) >= ROLES.index(needed))  # pyright: ignore[reportArgumentType]


# -- the rows -------------------------------------------------------------------------------------


def test_every_operation_of_the_document_has_a_row(site: Site) -> None:
    with httpx.Client(headers={"Authorization": f"Bearer {site.tokens['viewer']}"}, timeout=150) as client:
        document = client.get(f"{site.web.url}{API}/schema/openapi.json").json()
    found = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    assert found == {(method, API + path) for method, path in HTTP}


async def test_every_route_of_the_server_has_a_row(site: Site) -> None:
    """Also those that are not in the document: pages, files, the log-in."""
    app = load_app(str(APP))
    async with site.database() as database:
        routes = build(ServerState(app, database, ServerSettings()))._inner._inner.routes
    found = {
        (method, re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path))
        for route in routes
        if isinstance(route, HTTPRoute)
        for method in route.methods - {"OPTIONS", "HEAD"}
    }
    assert found == set(EVERYTHING)


def test_every_method_over_grpc_has_a_row() -> None:
    services = [service for file in DESCRIPTORS for service in file.services_by_name.values()]
    assert {(service.name, method.name) for service in services for method in service.methods} == set(GRPC)


def test_every_command_has_a_row() -> None:
    def commands(app: Any, prefix: str = "") -> Iterator[str]:
        for name in app:
            inner = app[name]
            if not name.startswith("-"):
                if inner.default_command is not None:
                    yield prefix + name
                yield from commands(inner, f"{prefix}{name} ")

    assert set(commands(main.build(whole=True))) == set(CLI)


# -- over HTTP ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("account", ["nobody", *ROLES])
def test_over_http_each_account_may_do_what_its_role_says_and_nothing_more(site: Site, account: str) -> None:
    role = None if account == "nobody" else account
    before, wrong = site.changes(), {}
    headers = {} if role is None else {"Authorization": f"Bearer {site.tokens[role]}"}
    with httpx.Client(timeout=150, headers=headers) as client:
        for (method, path), needed in EVERYTHING.items():
            response = send(client, site, method, path)
            status = response.status_code
            if method == "POST" and path == f"{API}/session":
                continue  # An empty log-in is wrong for everyone.
            if may(role, needed):
                fits = status not in REFUSED and status < 500
            elif role is None:
                fits = status == 401 and response.headers.get("www-authenticate") == "Bearer"
            else:
                fits = status == 403 and f"role {needed}" in response.json()["detail"]
            if not fits:
                wrong[method, path] = (status, response.text[:200])
    assert wrong == {}
    if role in (None, "viewer"):
        assert site.changes() == before, "it has changed nothing"


@pytest.mark.long
@pytest.mark.parametrize("token", ["wrong", "revoked", "expired", "foreign", "viewer as a password"])
def test_over_http_a_worthless_token_opens_nothing(site: Site, token: str) -> None:
    before, opened = site.changes(), {}
    kind, _, name = ("Basic", "", "viewer") if token == "viewer as a password" else ("Bearer", "", token)
    with httpx.Client(timeout=150, headers={"Authorization": f"{kind} {site.tokens[name]}"}) as client:
        for (method, path), needed in EVERYTHING.items():
            status = send(client, site, method, path).status_code
            if needed != OPEN and status not in REFUSED:
                opened[method, path] = status
    assert opened == {}
    assert site.changes() == before


def test_the_author_of_a_page_on_another_site_does_nothing_with_an_admins_browser(site: Site) -> None:
    before, opened = site.changes(), {}
    foreign = {"Origin": "https://evil.example.org", "Sec-Fetch-Site": "cross-site"}
    with httpx.Client(timeout=150) as browser:
        csrf = site.log_in(browser, "admin")["csrf"]
        before += 1  # The log-in itself.
        for said in (foreign, {"Origin": "null"}, {**foreign, "X-CSRF-Token": csrf}, {"X-CSRF-Token": "guessed"}):
            for (method, path), needed in EVERYTHING.items():
                if method == "GET" and (needed == OPEN or "Sec-Fetch-Site" not in said or "/api/" not in path):
                    continue  # Reading needs CORS, which no answer allows; the console's page has no data.
                response = send(browser, site, method, path, **said)
                allowed = "access-control-allow-origin" in response.headers
                if response.status_code not in REFUSED or allowed:
                    opened[method, path] = response.status_code
    assert opened == {}
    assert site.changes() == before


def test_the_author_of_the_applications_page_shows_only_files_of_its_folder(site: Site) -> None:
    with httpx.Client(timeout=150, headers={"Authorization": f"Bearer {site.tokens['admin']}"}) as client:
        for name in (
            "link.txt",
            "..%2fsecret.txt",
            "../secret.txt",
            "%2e%2e/secret.txt",
            "/etc/passwd",
            "index.html%00",
        ):
            response = client.get(f"{site.web.url}/pages/board/{name}")
            assert SECRET not in response.text, name
            assert response.status_code in (200, 404), name
        page = client.get(f"{site.web.url}/pages/board/")
        assert page.text == "<h1>Board</h1>"
        policy = page.headers["content-security-policy"]
        for part in ("default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"):
            assert part in policy, "its scripts load nothing from elsewhere, and send nothing there"


def test_the_sender_of_a_webhook_runs_what_it_signs_for_and_nothing_else(site: Site) -> None:
    """A signature is no account: it opens the one workflow whose secret made it, for the body that it is of."""
    body, before, opened = b"{}", site.changes(), {}
    digest = hmac.new(HOOK_SECRET.encode(), body, hashlib.sha256).hexdigest()
    signed = {"X-Hub-Signature-256": f"sha256={digest}", "Content-Type": "application/json"}
    with httpx.Client(timeout=150) as sender:
        for (method, path), needed in EVERYTHING.items():
            with sender.stream(method, site.web.url + filled(path), content=body, headers=signed) as response:
                if needed != OPEN and response.status_code not in REFUSED:
                    opened[method, path] = response.status_code
        hook = f"{site.web.url}{API}/webhooks"
        assert sender.post(f"{hook}/shell", content=body, headers=signed).status_code == 404, "it declares no signature"
        assert sender.post(f"{hook}/signed", content=b"[]", headers=signed).status_code == 401, "another body"
        assert sender.post(f"{hook}/signed", content=body).status_code == 401
        assert opened == {}
        assert site.changes() <= before + 1, "a refusal is in the audit trail, at most once a minute"
        assert sender.post(f"{hook}/signed", content=body, headers=signed).status_code == 202


def test_an_operators_token_for_webhooks_reaches_no_workflow_that_runs_a_command(site: Site) -> None:
    for role in (None, "viewer", "operator", "editor"):
        headers = {} if role is None else {"Authorization": f"Bearer {site.tokens[role]}"}
        with httpx.Client(timeout=150, headers=headers) as sender:
            run = sender.post(f"{site.web.url}{API}/triggers/shell", json={"word": "x"})
            assert run.status_code == (401 if role is None else 403), role
            job = {"task": "workflow/shell", "args": {"payload": {"word": "x"}}}
            assert sender.post(f"{site.web.url}{API}/jobs", json=job).status_code == (401 if role is None else 403)


SAVED = {"name": "own", "mode": "trigger", "connections": []}
NODE = {"id": "1", "name": "a", "data": {}}


@pytest.mark.parametrize(
    ("content", "needs"),
    [
        ({**SAVED, "nodes": [{**NODE, "typeId": "webhook"}]}, "editor"),
        ({**SAVED, "nodes": [{**NODE, "typeId": "run_command", "data": {"command": "id"}}]}, "admin"),
        ({**SAVED, "nodes": [{**NODE, "typeId": "postgres_query", "data": {"query": "SELECT 1"}}]}, "admin"),
        ({**SAVED, "nodes": [{**NODE, "typeId": "append_to_file", "data": {"path": "/etc/x"}}]}, "admin"),
        ({**SAVED, "nodes": [{**NODE, "typeId": "of_another_process"}]}, "admin"),
        ({"name": "p", "stateRoot": "/etc", "stages": [{"name": "s", "pattern": "{id}.txt"}]}, "admin"),
        ({"name": "p", "stages": [{"name": "s", "pattern": "{id}.txt"}]}, "admin"),
        ({"name": "d", "nodes": [{"name": "a", "task": "send", "args": {"order": 1}}]}, "editor"),
        ({"name": "d", "nodes": [{"name": "a", "task": "workflow/shell", "args": {"payload": {}}}]}, "admin"),
    ],
)
def test_an_editor_saves_no_file_that_could_run_a_command_or_write_anywhere(
    site: Site, content: dict[str, Any], needs: str
) -> None:
    path, text = f"{site.web.url}{API}/workflow-files/own.json", json.dumps(content)
    body = {"text": text, "broken": True}
    file = site.folder / "workflows" / "own.json"
    with httpx.Client(timeout=150) as client:

        def ask(method: str, role: str, address: str = path, **more: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {site.tokens[role]}", **more.pop("headers", {})}
            return client.request(method, address, headers=headers, **more)

        for role in ("viewer", "operator"):
            assert ask("PUT", role, json=body, headers={"If-None-Match": "*"}).status_code == 403
        saved = ask("PUT", "editor", json=body, headers={"If-None-Match": "*"})
        assert saved.status_code == (200 if needs == "editor" else 403), saved.text
        assert file.exists() is (needs == "editor")
        if needs == "admin":
            assert "role admin" in saved.json()["detail"]
            saved = ask("PUT", "admin", json=body, headers={"If-None-Match": "*"})
            assert saved.status_code == 200, saved.text
            version = {"If-Match": saved.headers["etag"]}
            harmless = json.dumps({**SAVED, "nodes": []})
            taken = ask("PUT", "editor", json={"text": harmless, "broken": True}, headers=version)
            moved = ask("POST", "editor", f"{site.web.url}{API}/workflow-files/rename", headers=version,
                        json={"path": "own.json", "to": "other.json"})  # fmt: skip
            gone = ask("DELETE", "editor", headers=version)
            assert [each.status_code for each in (taken, moved, gone)] == [403, 403, 403], "it is an admin's file"
            assert file.read_text() == text
        assert ask("DELETE", "admin", headers={"If-Match": saved.headers["etag"]}).status_code == 204


MESSAGES = (
    "<script>alert(1)</script>",
    "$(touch /tmp/x)",
    "'; DROP TABLE tidemill.job; --",
    "{{$.secret}}",
    "\r\nX: y",
)


@pytest.mark.parametrize("text", MESSAGES)
def test_the_author_of_a_message_has_it_shown_as_data_and_nothing_else(site: Site, text: str) -> None:
    with httpx.Client(timeout=150, headers={"Authorization": f"Bearer {site.tokens['operator']}"}) as client:
        base = f"{site.web.url}{API}"
        job = client.post(f"{base}/jobs", json={"task": "count", "args": {}, "tags": [text.strip()[:50]]})
        topic = client.post(f"{base}/topics/t/messages", json={"messages": [{"payload": {"text": text}}]})
        run = client.post(f"{base}/triggers/greet", json={"who": text})
        assert run.status_code == 202, run.text
        shown = [client.get(f"{base}/jobs/{run.json()['id']}"), client.get(f"{base}/search", params={"q": text})]
        if job.status_code == 201:
            shown.append(client.get(f"{base}/jobs/{job.json()['id']}"))
        assert topic.status_code in (201, 422)
        for response in shown:
            assert response.status_code in (200, 422), response.text
            assert response.headers["content-type"].startswith(("application/json", "application/problem+json"))
            assert response.headers["x-content-type-options"] == "nosniff"
        assert shown[0].json()["args"] == {"payload": {"who": text}}, "as it was sent"


# -- over gRPC ------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("account", ["nobody", "wrong", "revoked", "expired", "foreign", *ROLES])
async def test_over_grpc_each_account_may_call_what_its_role_says_and_nothing_more(site: Site, account: str) -> None:
    worthless = account not in ROLES
    refused = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED}
    wrong: dict[tuple[str, str], Any] = {}
    async with rpc_client(site.grpc, site.tokens.get(account)) as rpc:
        for (service, method), needed in GRPC.items():
            try:
                if METHODS[service, method].stream is not None:
                    async for _ in rpc.many(service, method, timeout=60.0):
                        break
                else:
                    await rpc(service, method)
                code = grpc.StatusCode.OK
            except grpc.aio.AioRpcError as error:
                code = error.code()
            allowed = not worthless and may(account, needed)
            if (code in refused) is allowed or code is grpc.StatusCode.INTERNAL:
                wrong[service, method] = code
    assert wrong == {}


# -- by commands through a server -----------------------------------------------------------------


def command(text: str, server: str, token: str | None) -> tuple[int, str]:
    """What a command through a server says, and its exit status."""
    out, err = io.StringIO(), io.StringIO()
    kept = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("TIDEMILL_")}
    os.environ.update({} if token is None else {"TIDEMILL_TOKEN": token})
    typed, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(b"{}"))
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main.run([*shlex.split(text), "--server", server])
    finally:
        sys.stdin = typed
        os.environ.pop("TIDEMILL_TOKEN", None)
        os.environ.update(kept)
    return status, out.getvalue() + err.getvalue()


REFUSALS = re.compile(r"needs the role|asks for a token|rejects this token|is for application|too many wrong tokens")


@pytest.mark.long
@pytest.mark.parametrize("account", ["nobody", *ROLES])
def test_by_commands_each_role_does_what_it_may_and_nothing_more(
    site: Site, account: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command as every account: the server decides, as for every request."""
    built = main.build(whole=True)
    monkeypatch.setattr(main, "build", lambda *, whole=False: built)  # Once is enough.
    before, wrong, forbidden = site.changes(), dict[str, str](), list[str]()
    commands = {name: row for name, row in CLI.items() if row[0] != HERE}
    for name, (needed, text) in commands.items():
        allowed = account != "nobody" and may(account, needed)
        status, said = command(text, site.web.url, site.tokens.get(account))
        is_refused = status == 1 and REFUSALS.search(said) is not None
        # A change may end with what it reads first, for which a viewer is enough.
        found_nothing = account == "viewer" and needed == "operator" and not is_refused
        if status == 2 or "unexpected" in said or (is_refused is allowed and not found_nothing):
            wrong[name] = f"{status}: {said.strip()[:200]}"
        if is_refused:
            forbidden.append(name)
    assert wrong == {}
    refused = sum(account == "nobody" or not may(account, needed) for needed, _ in commands.values())
    assert len(forbidden) >= 0.8 * refused
    if account in ("nobody", "viewer"):
        assert site.changes() == before, "what was not refused has changed nothing"


@pytest.mark.long
@pytest.mark.parametrize("token", ["wrong", "revoked", "expired", "foreign"])
def test_by_commands_a_worthless_token_opens_nothing(site: Site, token: str) -> None:
    for name in ("jobs", "cancel", "token create"):
        status, said = command(CLI[name][1], site.web.url, site.tokens[token])
        assert status == 1
        assert REFUSALS.search(said), said


# -- another user of this machine -----------------------------------------------------------------


def as_another_user(act: Callable[[], Any]) -> Any:
    """What a function returns when another user of this machine runs it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # Here is no way back into the test.
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            result = act()
        except BaseException:  # noqa: BLE001 - it is reported to the test
            result = {"raised": traceback.format_exc()}
        with os.fdopen(writing, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = pipe.read()
    os.waitpid(child, 0)
    return json.loads(told)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_another_user_of_this_machine_reaches_nothing(site: Site) -> None:
    (door,) = site.web.directory.glob("*.server.sock")
    before = site.changes()

    def attack() -> dict[str, Any]:
        found: dict[str, Any] = {"http": {}, "files": [], "user": os.getuid()}
        with httpx.Client(timeout=150) as client:
            for (method, path), needed in EVERYTHING.items():
                status = send(client, site, method, path).status_code
                if needed != OPEN and status not in REFUSED:
                    found["http"][f"{method} {path}"] = status
        found["socket"] = socket.socket(socket.AF_UNIX).connect_ex(str(door))
        for place in (site.web.directory, *site.web.directory.parent.glob(f"{site.web.directory.name}/*")):
            with contextlib.suppress(OSError):
                found["files"].append(os.listdir(place) if place.is_dir() else place.read_bytes().hex())
        return found

    told = as_another_user(attack)
    assert told == {"http": {}, "files": [], "user": OTHER_USER, "socket": errno.EACCES}
    site.web.directory.chmod(0o755)  # Even if the directory were open, the socket is not.
    try:
        assert as_another_user(lambda: socket.socket(socket.AF_UNIX).connect_ex(str(door))) == errno.EACCES
    finally:
        site.web.directory.chmod(0o700)
    assert site.changes() == before


def test_the_user_that_runs_the_server_needs_no_token_at_the_socket(site: Site) -> None:
    (door,) = site.web.directory.glob("*.server.sock")
    transport = httpx.HTTPTransport(uds=str(door))
    with httpx.Client(transport=transport, base_url=f"http://localhost{API}", timeout=150) as own:
        assert own.get("/tokens").status_code == 200
        assert own.get("/session").json()["role"] == "admin"
