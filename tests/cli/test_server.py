"""`tidemill up` prints one URL and serves there; `tidemill token` lets people in."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx
import psutil
import pytest

from tests.support.cli import PATIENCE, Process, make_folder, ok, run
from tests.support.grpcclient import Rpc
from tests.support.ports import free_port
from tests.support.server import TestServer


@pytest.fixture(scope="module")
def grpc_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, grpc_port: int) -> Iterator[Process]:
    process = Process(
        make_folder(tmp_path_factory.mktemp("web")), "up", "app.py", "--trust-local", "--grpc", str(grpc_port)
    )
    try:
        process.line("serving http")
        yield process
    finally:
        process.close()


def url_of(process: Process) -> str:
    return process.line("serving http").split()[-1]


def test_up_prints_one_url_that_answers(shop: Process) -> None:
    assert sum("serving http" in line and not line.startswith("{") for line in shop.lines) == 1
    asked = {"task": "send_receipt", "args": {"order_id": 3}}
    made = httpx.post(f"{url_of(shop)}/api/v1/jobs", json=asked, timeout=PATIENCE)
    assert made.status_code == 201, made.text
    assert ok(shop.folder, "job", str(made.json()["id"])).startswith(f"job {made.json()['id']}")


async def test_up_serves_grpc_where_it_is_told_to(shop: Process, grpc_port: int) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
        made = await Rpc(channel)("Jobs", "EnqueueJob", task="send_receipt", args='{"order_id": 4}')
    assert ok(shop.folder, "job", str(made.id)).startswith(f"job {made.id}")


def test_the_command_that_a_server_names_makes_a_link_to_it(tmp_path: Path) -> None:
    with contextlib.closing(Process(make_folder(tmp_path), "up", "app.py", "--port", str(free_port()))) as up:
        url = url_of(up)
        command = up.line("logs one browser in").split("`")[1].split()
        assert ok(tmp_path, *command[1:]).startswith(f"{url}/#token=tm_")


def test_tokens_are_made_listed_and_revoked(shop: Process) -> None:
    made = run(shop.folder, "token", "create", "ci", "--role", "operator", "--expires", "1h")
    secret = made.stdout.strip()
    assert secret.startswith("tm_")
    assert "not shown again" in made.stderr
    listed = ok(shop.folder, "token", "list")
    assert secret not in listed
    assert f"…{secret[-4:]}" in listed
    headers = {"Authorization": f"Bearer {secret}"}
    session = httpx.get(f"{url_of(shop)}/api/v1/session", headers=headers, timeout=PATIENCE).json()
    assert (session["role"], session["name"]) == ("operator", "ci (token 1)")
    assert "is revoked" in ok(shop.folder, "token", "revoke", "1")
    assert "revoked" in ok(shop.folder, "token", "list")
    assert run(shop.folder, "token", "revoke", "1").returncode == 1


def test_a_token_that_is_made_for_one_application_is_for_this_one_only(shop: Process, tmp_path: Path) -> None:
    create = ("token", "create", "ours", "--role", "admin", "--application", "shop", "--json")
    made = json.loads(ok(shop.folder, *create))
    assert made["application"] == "shop"
    secret = tmp_path / "token"
    secret.write_text(made["secret"])
    far = json.loads(ok(shop.folder, *create, "--server", url_of(shop), "--token-file", str(secret)))
    assert far["application"] == "shop"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("token", "create", "x", "--role", "all"), "'all' is not one of viewer, operator, editor, admin"),
        (("token", "create", "x", "--expires", "soon"), "--expires"),
        (("token", "create", " "), "not a valid token name"),
        (("server", "app.py", "--port", "99999"), "99999"),
        (("server", "app.py", "--host", "0.0.0.0"), "--tls-cert"),
        (("server", "app.py", "--tls-cert", "x"), "--tls-key"),
        (("up", "app.py", "--grpc", "7434", "--no-server"), "leave out --no-server"),
        (("up", "app.py", "--grpc", "0.0.0.0:7434"), "served by `tidemill server --grpc`"),
        (("up", "app.py", "--grpc", "here"), "--grpc 'here' is not an address"),
        (("server", "app.py", "--host", "no.such.host.invalid", "--plain-http"), ""),
        (("server", "nothing.py"), "nothing.py"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(shop: Process, arguments: tuple[str, ...], said: str) -> None:
    done = run(shop.folder, *arguments)
    assert done.returncode == 1, done.stdout
    assert done.stderr.startswith("error: ")
    assert said in done.stderr


def test_up_can_do_without_a_server(tmp_path: Path, database_url: str) -> None:
    process = Process(make_folder(tmp_path / "quiet", database_url=database_url), "up", "app.py", "--no-server")
    try:
        process.line("worker started")
        process.line("scheduler started")
        assert not any("server" in child.cmdline() for child in process.tree())
    finally:
        process.close()
    assert "serving http" not in process.output


def test_the_address_of_a_database_is_in_no_arguments_of_the_processes_that_up_starts(
    tmp_path: Path, server: TestServer
) -> None:
    url = server.create()
    folder = make_folder(tmp_path / "own")
    process = Process(folder, "up", "app.py", "--trust-local", "--database-url", url)
    try:
        process.line("worker started")
        started = [each.cmdline() for each in psutil.Process(process.pid).children(recursive=True)]
        roles = [words for words in started if words[0] == "tidemill"]
        assert len(roles) >= 3
        assert not any(url in word for words in started for word in words)
        assert "no jobs" in ok(folder, "jobs", "--database-url", url)
    finally:
        process.close()
        server.drop(url)


def test_json_logs_have_an_event_that_says_where_it_serves(database_url: str, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "json", database_url=database_url)
    maintenance = Process(folder, "maintenance", "app.py")
    server = Process(folder, "server", "app.py", "--trust-local", "--port", "0", TIDEMILL_LOG_FORMAT="json")
    try:
        event = json.loads(server.line('"serving"'))
        assert (event["event"], event["url"]) == ("serving", url_of(server))
        assert httpx.get(f"{event['url']}/livez").status_code == 200
    finally:
        server.close()
        maintenance.close()
