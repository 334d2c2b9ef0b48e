"""Credentials of workflow files: their secrets stay hidden, and what is none stays readable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mail_server import mail_server, self_signed
from tests.support.pipelines import put, tree, update
from tests.support.receiver import Request
from tests.support.workflow_runs import asked, chain, keep_credentials, node, run, staged
from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows import parse_workflow
from tidemill.pipelines.workflows.expressions.names import masked
from tidemill.store.database import Database


def test_fields_of_a_credential_that_are_no_secret_stay_readable() -> None:
    def echo(request: Request) -> tuple[int, bytes]:
        told = {"host": "localhost", "ok": "true", "port": "5432", "user": "ada"}
        return 200, json.dumps({**told, "got": request.headers["Authorization"]}).encode()

    with asked(echo) as (url, _):
        keep_credentials(
            site={"server": "localhost", "port": "5432", "tls": "true", "username": "ada", "password": "s3cret-word"}
        )
        (made,) = run(node("a", "http", url=url, credentialName="site"))["a"]
    assert {**made["body"], "got": ""} == {"host": "localhost", "ok": "true", "port": "5432", "user": "ada", "got": ""}
    assert made["body"]["got"] == "Basic **********"


def test_every_field_that_is_not_known_to_be_public_is_a_secret() -> None:
    held = {"news": {"token": "t0ken", "url": "https://hooks.example.org/T0/B1", "anything": "f00bar", "host": "h0st"}}
    told = masked("t0ken https://hooks.example.org/T0/B1 f00bar h0st", held)
    assert told == "********** ********** ********** h0st"


def test_the_password_in_an_address_is_a_secret_of_its_own() -> None:
    held = {"postgres": {"url": "postgresql://ada:p%40ssword@db.example.org/shop"}}
    assert masked('password authentication failed for "ada": p@ssword, p%40ssword', held) == (
        'password authentication failed for "ada": **********, **********'
    )


async def test_a_state_holds_no_secret_that_a_server_sends_back(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with asked(lambda request: (200, request.headers["Authorization"].encode())) as (url, _):
        keep_credentials(site={"token": "s3cret-word"})
        staging = staged(
            {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
            {"id": "got", "type": "transform", "input": "src", "pattern": "got/{id}.txt",
             "node": {"typeId": "http", "data": {"url": url, "credentialName": "site"}}},
        )  # fmt: skip
        drawn = chain(
            node("t", "state_trigger", pattern="in/{id}.txt"),
            node("h", "http", url=url, credentialName="site"),
            node("w", "state_write", pattern="drawn/{{$.t.id}}.txt", content="{{$.h.body}}"),
            mode="pipeline", stateRoot="states",
        )  # fmt: skip
        put(tmp_path / "states", {"in/a.txt": "x"})
        for name, data in (("staged", staging), ("drawn", drawn)):
            (pipeline,) = parse_workflow(data, name).pipelines
            assert (await update(database, pipeline)).steps == []
    made = tree(tmp_path / "states")
    assert (made["got/a.txt"], made["drawn/a.txt"]) == ("Bearer **********", "Bearer **********")


def test_a_mail_server_with_an_untrusted_certificate_is_refused_unless_it_is_configured(tmp_path: Path) -> None:
    tls, certificate = self_signed(tmp_path)
    (tmp_path / "ca.pem").write_text(certificate)
    notice = node("n", "notification", title="Tide", message="high water")
    with mail_server(tls) as (port, mails):
        held = {"server": "127.0.0.1", "port": str(port), "to": "ops@example.org", "tls": "true"}
        keep_credentials(notification=held)
        with pytest.raises(ConfigError, match=r"certificate of 127\.0\.0\.1 is not trusted: self-signed certificate"):
            run(notice)
        assert mails == []
        for ca in (certificate, str(tmp_path / "ca.pem")):
            keep_credentials(notification={**held, "ca": ca})
            assert run(notice)["n"] == [{"sent": True}]
        keep_credentials(notification={**held, "ca": str(tmp_path / "none.pem")})
        with pytest.raises(ConfigError, match="`ca` is neither certificates in PEM nor a file"):
            run(notice)
    assert len(mails) == 2
    assert "high water" in mails[0]
