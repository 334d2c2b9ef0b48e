"""The auto-blog's writers: a language model over HTTP, of either kind, and the honest one without."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from apps.autoblog.writing import OFFLINE, compose, describe_writer, pick_sentences, summarise
from tidemill.pipelines.workflows.llm import ModelCallError, ask

LOG = "10:02 INFO The importer was restarted.\n10:30 INFO Ada asked whether the importer is still needed.\n"


class Model:
    """A language model that answers with what it was asked, in both dialects."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.status = 200


@pytest.fixture
def model() -> Iterator[Model]:
    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            known.asked.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            text = f"{body['model']} was asked"
            told = {"content": [{"text": text}], "choices": [{"message": {"content": text}}], "error": "no more"}
            self.send_response(known.status)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answering)
    known = Model(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield known
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "TIDEMILL_LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)


async def test_a_model_of_anthropics_writes_when_there_is_a_key(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", model.address)
    monkeypatch.setenv("TIDEMILL_LLM_MODEL", "wise")
    assert describe_writer() != OFFLINE
    assert await summarise("2026-01-15", [LOG], describe_writer()) == "wise was asked"
    ((path, body, headers),) = model.asked
    assert (path, headers["x-api-key"]) == ("/v1/messages", "secret")
    assert "The importer was restarted." in body["messages"][0]["content"]


async def test_any_server_that_speaks_as_openais_does_may_write(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{model.address}/v1/")
    assert (await compose("2026-01-15", "All went well.", describe_writer())).endswith(" was asked")
    ((path, _, headers),) = model.asked
    assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer secret")


def test_a_model_that_refuses_is_told_with_what_it_said(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_BASE_URL", model.address)
    model.status = 429
    with pytest.raises(ModelCallError, match=r"rejected the request \(429\).*no more"):
        ask("anything")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ModelCallError, match="set ANTHROPIC_API_KEY or OPENAI_API_KEY"):
        ask("anything")


async def test_without_a_key_every_sentence_is_one_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_writer() == OFFLINE
    picked = pick_sentences(LOG, 5)
    assert picked == ["The importer was restarted.", "Ada asked whether the importer is still needed."]
    assert "offline" in await compose("2026-01-15", await summarise("2026-01-15", [LOG], OFFLINE), OFFLINE)
