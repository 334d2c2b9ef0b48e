"""Access from this machine: a log-in link for one browser, a socket for the own user, nothing for all others."""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.support import value
from tests.support.waiting import eventually
from tests.support.web import API, LOGIN_NEEDED, ROOT, WebServer, web_server
from tidemill.core.errors import ConfigError
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database

OTHER_USER = 65534


def socket_of(server: WebServer) -> Path:
    (found,) = server.directory.glob("*.server.sock")
    return found


async def link_of(server: WebServer) -> str:
    found = await eventually(lambda: re.search(r"^open (\S+)", server.said, re.MULTILINE), what="the link is printed")
    return found[1]


def local_client(server: WebServer) -> httpx.AsyncClient:
    transport = httpx.AsyncHTTPTransport(uds=str(socket_of(server)))
    return httpx.AsyncClient(transport=transport, base_url=f"http://localhost{API}", timeout=150)


async def test_loopback_alone_opens_nothing(database_url: str, database: Database) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server, server.client() as stranger:
        for method, path, body in (
            ("GET", "/jobs", None),
            ("POST", "/jobs", {"task": "send", "args": {"order": 1}}),
            ("POST", "/tokens", {"name": "mine", "role": "admin"}),
            ("POST", "/tokens/link", {}),
            ("PUT", "/workflow-files/evil.json", {"nodes": []}),
        ):
            assert (await stranger.request(method, path, json=body)).status_code == 401, (method, path)
        assert (await stranger.get("/health")).status_code == 200
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 0
    assert await value(database, "SELECT count(*) FROM tidemill.token WHERE NOT one_time") == 0


async def test_a_login_link_opens_one_session_and_is_used_up(database_url: str) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        parts = urlsplit(await link_of(server))
        token = parts.fragment.removeprefix("token=")
        assert f"{parts.scheme}://{parts.netloc}" == server.url
        assert token not in server.said.replace(parts.fragment, ""), "no log line has it"
        async with server.client(token) as bearer:
            assert (await bearer.get("/jobs")).status_code == 401, "it is for a log-in, not for requests"
        async with server.client() as browser, server.client() as second:
            opened = await browser.post("/session", json={"token": token})
            assert (opened.status_code, opened.json()["role"]) == (201, "admin")
            assert (await browser.get("/jobs")).status_code == 200
            refused = await second.post("/session", json={"token": token})
            assert refused.status_code == 401
            assert "tidemill token link" in refused.json()["detail"]
            headers = {"X-CSRF-Token": opened.json()["csrf"]}
            made = (await browser.post("/tokens/link", json={}, headers=headers)).json()["secret"]
            assert (await second.post("/session", json={"token": made})).status_code == 201
            for each in (await browser.get("/tokens")).json()["items"]:
                await browser.delete(f"/tokens/{each['id']}", headers=headers)
            assert (await second.get("/jobs")).status_code == 401, "revoking a used link ends its session"


async def test_the_socket_is_for_the_user_that_runs_the_server(database_url: str, database: Database) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        path = socket_of(server)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        async with local_client(server) as own:
            assert (await own.get("/jobs")).status_code == 200
            assert (await own.post("/jobs", json={"task": "send", "args": {"order": 1}})).status_code == 201
            session = (await own.get("/session")).json()
            assert session["role"] == "admin"
        server.terminate()
        await server.ends()
        assert not path.exists()
    assert await value(database, "SELECT count(*) FROM tidemill.job") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
async def test_another_user_cannot_open_the_socket(database_url: str) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:
        path = socket_of(server)
        path.parent.chmod(0o755)  # Even if the directory were open, the socket is not.

        child = os.fork()
        if child == 0:  # Here is no way back into the test: the child only tries and exits.
            os.setgid(OTHER_USER)
            os.setuid(OTHER_USER)
            os._exit(socket.socket(socket.AF_UNIX).connect_ex(str(path)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == errno.EACCES


async def test_commands_work_through_the_socket_without_a_token(database_url: str) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server:

        def command(*words: str, at: str) -> subprocess.CompletedProcess[str]:
            env = {**os.environ, "PYTHONPATH": str(ROOT), "TIDEMILL_SERVER": at}
            run = [sys.executable, "-m", "tidemill.cli.main", *words]
            return subprocess.run(run, env=env, capture_output=True, text=True, check=False)

        made = command("enqueue", "send", '{"order": 7}', at=f"unix:{socket_of(server)}")
        assert made.returncode == 0, made.stderr
        assert "send" in command("jobs", at=f"unix:{socket_of(server)}").stdout
        refused = command("jobs", at=server.url)
        assert refused.returncode == 1
        assert "unix:PATH" in refused.stderr
        gone = command("jobs", at=f"unix:{server.directory}/no.sock")
        assert "no server answers" in gone.stderr


async def test_trust_local_restores_access_without_a_token(database_url: str) -> None:
    async with web_server(database_url) as server, server.client() as local:
        assert (await local.get("/jobs")).status_code == 200
        assert not re.search(r"^open ", server.said, re.MULTILINE)


@pytest.mark.parametrize(
    "open_to_others",
    [{"host": "0.0.0.0", "plain_http": True}, {"behind_proxy": True}, {"grpc": "0.0.0.0:7434", "plain_http": True}],
)
def test_trust_local_is_refused_for_a_server_that_others_can_reach(open_to_others: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--trust-local"):
        ServerSettings(trust_local=True, **open_to_others).validate()


async def test_wrong_tokens_are_limited_and_lock_no_holder_out(database_url: str) -> None:
    async with web_server(database_url, LOGIN_NEEDED) as server, local_client(server) as own:
        good = (await own.post("/tokens", json={"name": "ops", "role": "viewer"})).json()["secret"]
        async with server.client() as guessing:
            headers = [{"Authorization": f"Bearer tm_{n}"} for n in range(40)]
            statuses = [(await guessing.get("/jobs", headers=each)).status_code for each in headers]
            assert statuses[:30] == [401] * 30
            assert set(statuses[30:]) == {429}
            right = await guessing.get("/jobs", headers={"Authorization": f"Bearer {good}"})
            assert right.status_code == 200
