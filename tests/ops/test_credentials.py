"""Credentials are sealed at rest, rotated, used by nodes, and never shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.receiver import Request, receiver
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError
from tidemill.ops.admin.credentials import (
    CredentialRef,
    SetCredential,
    delete_credential,
    list_credentials,
    rotate_credentials,
    set_credential,
)
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.pipelines.workflows import parse_workflow
from tidemill.store.access.key_ring import KEYS, find_key_ring, new_key, read_keys, require_key_ring
from tidemill.store.database import Database, DatabaseSettings

SECRET = "tide-table-s3cret"


def operator(database: Database) -> Local:
    return Local(database, Caller("ann", "admin"), None)


async def test_a_credential_is_sealed_in_the_database_and_its_value_is_nowhere(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, new_key())
    at = operator(database)
    made = await at.do(set_credential, SetCredential(name="news", fields={"token": SECRET}))
    assert (made.fields, made.readable, made.changed_by) == (["token"], True, "ann")
    rows = await database.fetch("SELECT c::text FROM tidemill.credential c")
    trail = await database.fetch("SELECT a::text FROM tidemill.audit a")
    listed = await at.do(list_credentials, Nothing())
    for text in (*(row[0] for row in rows), *(row[0] for row in trail), repr(listed), repr(made)):
        assert SECRET not in text
        assert SECRET.encode().hex() not in text
    assert "credential.set" in trail[-1][0]


async def test_keys_are_rotated_and_the_old_one_can_go(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = new_key(), new_key()
    monkeypatch.setenv(KEYS, old)
    at = operator(database)
    await at.do(set_credential, SetCredential(name="news", fields={"token": SECRET}))
    monkeypatch.setenv(KEYS, new)
    assert [each.readable for each in (await at.do(list_credentials, Nothing())).items] == [False]
    with pytest.raises(ConfigError, match="is sealed with key"):
        await at.do(rotate_credentials, Nothing())
    monkeypatch.setenv(KEYS, f"{new},{old}")
    assert (await at.do(rotate_credentials, Nothing())).count == 1
    monkeypatch.setenv(KEYS, new)
    assert [each.readable for each in (await at.do(list_credentials, Nothing())).items] == [True]
    await at.do(delete_credential, CredentialRef(name="news"))
    assert (await at.do(list_credentials, Nothing())).items == []


def test_a_key_is_made_beside_an_embedded_database_and_only_there(tmp_path: Path) -> None:
    place = DatabaseSettings(directory=str(tmp_path / "data"))
    assert find_key_ring(None, place) is None
    made = require_key_ring(None, place)
    assert (tmp_path / "data/secret.key").stat().st_mode & 0o777 == 0o600
    assert require_key_ring(None, place) == made
    with pytest.raises(ConfigError, match="there is no key to seal secrets with"):
        require_key_ring(None, DatabaseSettings(url="postgresql://h/d", directory=str(tmp_path / "other")))
    with pytest.raises(ConfigError, match="does not exist"):
        find_key_ring(str(tmp_path / "none"), place)


async def test_a_sealed_credential_cannot_be_moved_to_another_name(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, new_key())
    ring = find_key_ring(None, database.settings)
    assert ring is not None
    key_id, sealed = ring.seal(b"{}", "credential a")
    assert ring.open(key_id, sealed, "credential a") == b"{}"
    with pytest.raises(ConfigError, match="cannot be opened"):
        ring.open(key_id, sealed, "credential b")
    with pytest.raises(ConfigError, match="is not 32 bytes in base64"):
        read_keys("short", "the test")


async def test_a_worker_runs_a_workflow_with_a_credential_and_stores_no_secret(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS, new_key())
    await operator(database).do(set_credential, SetCredential(name="news", fields={"token": SECRET}))
    seen: list[str] = []

    def answer(request: Request) -> tuple[int, bytes]:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen.append(headers["authorization"])
        return 200, json.dumps({"you sent": headers["authorization"]}).encode()

    with receiver(answer) as server:
        app = App("harbour", database_url=database_url, allow_hosts=[server.url.removeprefix("http://")])
        headers = [{"name": "Authorization", "value": "Key {{$credentials.news.token}}"}]
        flow = {"nodes": [{"id": "h", "typeId": "http", "data": {"url": server.url, "headers": headers}}]}
        (workflow,) = parse_workflow(flow, "fetch").triggers
        task = app.trigger(workflow)
        async with app.running():
            handle = await app.enqueue(task.call(payload=None))
            result = await app.wait(handle.id, timeout=150)
        assert seen == [f"Key {SECRET}"]
        assert SECRET not in json.dumps(result, default=str)
        rows = await database.fetch("SELECT h::text FROM tidemill.job_history h")
        assert rows
        assert not any(SECRET in row[0] for row in rows)
