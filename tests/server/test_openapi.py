"""The API asked as its own document says, with everything that fits and much that does not: it never breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.support.pipelines import update
from tests.support.server import TestServer
from tests.support.web import API, WebServer
from tests.support.web_app import make_app
from tests.support.web_pipelines import make_notes
from tidemill.store.states.blobs import write_blobs

pytestmark = pytest.mark.long

EXAMPLES = 4
STREAMS = ("/changes", "/stream")


@pytest.fixture(scope="module")
def site(server: TestServer) -> Iterator[WebServer]:
    url = server.create()
    asyncio.run(_fill(url))
    web = WebServer(url)
    asyncio.run(web.wait_ready())
    yield web
    web.close()
    server.drop(url)


@pytest.fixture(scope="module")
def document(site: WebServer) -> Any:
    return schemathesis.openapi.from_url(f"{site.url}{API}/schema/openapi.json", timeout=150)


def test_no_request_that_its_document_allows_or_forbids_breaks_it(document: Any, site: WebServer) -> None:
    asked = refused = 0
    for found in document.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(STREAMS) and operation.method.lower() == "get":
            continue  # they do not end; tests/invariants/test_server_changes.py listens to them
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
            try:
                strategy = operation.as_strategy(generation_mode=mode)
            except schemathesis.errors.SchemathesisError:
                continue

            @settings(
                max_examples=EXAMPLES,
                database=None,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
                derandomize=True,
                phases=[Phase.generate],  # To look for a smaller one that fails too takes minutes, and tells no more.
            )
            @given(strategy)
            def check(case: Any) -> None:
                nonlocal asked, refused
                if case.path.startswith(f"{API}/pipelines/{{name}}"):
                    case.path_parameters["name"] = "notes"  # one that is there: guessed names lead nowhere
                case.headers.pop("Authorization", None)  # a made-up token ends at the door
                response = case.call(base_url=site.url, timeout=150)
                asked += 1
                refused += response.status_code == 401
                assert response.status_code < 500, (case.method, case.path, case.body, response.text)
                declared = case.operation.definition.raw["responses"]
                assert str(response.status_code) in declared, (case.method, case.path, response.status_code)
                if response.status_code >= 400:
                    told = response.json()
                    assert told["status"] == response.status_code, told
                    assert told["detail"], told

            check()
    assert asked > 200
    assert refused < asked / 20, "most requests end at the door"
    assert "a request failed" not in site.said


async def _fill(url: str) -> None:
    """Something of everything, so that addresses lead somewhere."""
    app = make_app(database_url=url)
    await app.enqueue("send", order=1)
    await app.start("Asking", who="ann")
    await app.start("order", order=1)
    async with app.database() as database:
        await write_blobs(database, "notes", [(f"in/{name}.txt", b"tide") for name in "abc"])
        await update(database, make_notes())
    await app.close()
