"""Values that are too large for an answer: their beginning in it, and the whole streamed from where it says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from tests.support.cli import run
from tests.support.grpcclient import rpc_client
from tests.support.ports import free_port
from tests.support.web import WebServer
from tidemill.core.codec import encode
from tidemill.dags import Dag, node as task_node
from tidemill.dags.runner.runner import DagInput
from tidemill.store.database import Database
from tidemill.store.runs.claims import DAG_KIND

LARGE = 30_000_000

STORE = """
INSERT INTO tidemill.job_history
    (id, finished_at, due_at, created_at, attempt, failures, losses, priority, state, queue, task, args, result)
VALUES (7, now(), now(), now(), 1, 0, 0, 5, 'succeeded', 'mail', 'send', $1, $2),
       (8, now(), now(), now(), 1, 0, 0, 5, 'succeeded', 'mail', 'send', '{}', $3)
"""
SECRET = {"password": {"$secret": "SecretStr", "value": "hunter2"}, "more": "x" * 100_000}


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
async def site(database_url: str, database: Database, address: str) -> AsyncIterator[WebServer]:
    result = json.dumps({"text": "größe " * (LARGE // 7)}, ensure_ascii=False).encode()
    await database.fetch(STORE, json.dumps({"order": "a" * 70_000}).encode(), result, json.dumps(SECRET).encode())
    await database.fetch(
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, payload) "
        "VALUES ('s', 'a', '1', 'failed', 3, now(), 'broken', $1)",
        b"\xff\x00" * 50_000,
    )
    await database.fetch(
        "INSERT INTO tidemill.run (id, workflow, kind, version, input, result, state, ended_at) "
        "VALUES (5, 'order', 'Asking', '1', $1, '1', 'succeeded', now())",
        json.dumps({"text": "i" * 90_000}).encode(),
    )
    await database.fetch(
        "INSERT INTO tidemill.tick (run_id, seq, data) VALUES (5, 1, $1)",
        json.dumps({"kind": "received", "at": 12.5, "event": "e" * 80_000}).encode(),
    )
    web = WebServer(database_url, f"--grpc={address}")
    try:
        yield await web.wait_ready()
    finally:
        web.kill()


async def whole(client: httpx.AsyncClient, url: str) -> bytes:
    answer = await client.get(url)
    assert answer.status_code == 200, answer.text
    return answer.content


async def test_an_answer_holds_the_beginning_and_where_the_whole_is(site: WebServer, database: Database) -> None:
    async with httpx.AsyncClient(base_url=site.url, timeout=150) as client:
        answer = await client.get("/api/v1/jobs/7")
        assert len(answer.content) < 300_000
        cut: dict[str, Any] = answer.json()["result"]["$cut"]
        assert (cut["bytes"] > LARGE, cut["first"][:15], len(cut["first"])) == (True, '{"text": "größe', 65_536)
        assert answer.json()["args"]["$cut"]["whole"] == "/api/v1/values/job/args/7"
        stored = await database.fetchrow("SELECT result::text AS text FROM tidemill.job_history WHERE id = 7")
        assert stored is not None
        assert await whole(client, cut["whole"]) == stored["text"].encode()

        run_told = (await client.get("/api/v1/runs/5")).json()
        assert json.loads(await whole(client, run_told["input"]["$cut"]["whole"])) == {"text": "i" * 90_000}
        (tick,) = (await client.get("/api/v1/runs/5/ticks")).json()["items"]
        assert (tick["kind"], tick["at"]) == ("received", "1970-01-01T00:00:12.500000Z")
        assert len(json.loads(await whole(client, tick["data"]["$cut"]["whole"]))["event"]) == 80_000

        assert (run_told["result"], run_told["error"]) == (1, None), "what is not there is not cut"

        letter = (await client.get("/api/v1/dead-letters")).json()["items"][0]
        told = (await client.get(f"/api/v1/dead-letters/{letter['id']}")).json()
        assert (told["truncated"], told["payload_bytes"], len(told["payload"])) == (True, 100_000, 65_536)
        assert await whole(client, told["whole"]) == b"\xff\x00" * 50_000

        for missing in ("job/result/99", "job/secret/7", "job/result/x", "tick/data/5", "nothing/at/all"):
            assert (await client.get(f"/api/v1/values/{missing}")).status_code == 404, missing


async def test_many_long_errors_are_shown_by_their_ends_and_the_last_one_in_full(
    site: WebServer, database: Database
) -> None:
    errors = [
        {"attempt": n, "at": 1.0, "kind": "E", "message": f"{n} " * 2_000, "traceback": "t" * 20_000 + f"end {n}"}
        for n in range(1, 21)
    ]
    await database.fetch("UPDATE tidemill.job_history SET errors = $1 WHERE id = 8", json.dumps(errors).encode())
    async with httpx.AsyncClient(base_url=site.url, timeout=150) as client:
        told = (await client.get("/api/v1/jobs/8")).json()["errors"]
        assert len(json.dumps(told)) < 65_536
        assert [each["attempt"] for each in told] == list(range(1, 21))
        assert told[-1] == errors[-1]
        assert told[0]["traceback"].endswith("end 1")
        assert "/api/v1/values/job/errors/8" in told[0]["traceback"]
        assert json.loads(await whole(client, "/api/v1/values/job/errors/8")) == errors


async def test_a_large_argument_in_the_tree_of_a_dag_is_cut(site: WebServer, database: Database) -> None:
    dag = Dag("d", [task_node("a", "t", args={"text": "x" * 90_000, "small": 1})])
    given = encode(DagInput(msgspec.Raw(dag.to_json()), {}))
    await database.fetch(
        "INSERT INTO tidemill.run (id, workflow, kind, version, input, state, ended_at) "
        "VALUES (6, 'd', $2, '1', $1, 'succeeded', now())",
        given,
        DAG_KIND,
    )
    async with httpx.AsyncClient(base_url=site.url, timeout=150) as client:
        answer = await client.get("/api/v1/runs/6/tree")
        assert answer.status_code == 200, answer.text
        tree = answer.json()
    (node,) = tree["definition"]["nodes"]
    assert node["args"]["small"] == 1
    assert node["args"]["text"]["$cut"]["whole"] == "/api/v1/values/run/input/6"


async def test_no_beginning_shows_a_secret_and_the_whole_is_masked(site: WebServer) -> None:
    async with httpx.AsyncClient(base_url=site.url, timeout=150) as client:
        cut = (await client.get("/api/v1/jobs/8")).json()["result"]["$cut"]
        assert cut["first"] == ""
        told = json.loads(await whole(client, cut["whole"]))
    assert told["password"]["value"] == "**********"
    assert told["more"] == SECRET["more"]


async def test_the_server_holds_no_large_value_while_it_streams_it(site: WebServer) -> None:
    process = psutil.Process(site._process.pid)
    async with httpx.AsyncClient(base_url=site.url, timeout=150) as client:
        await client.get("/api/v1/jobs/7")
        before, most, size = process.memory_info().rss, 0, 0
        async with client.stream("GET", "/api/v1/values/job/result/7") as answer:
            async for piece in answer.aiter_bytes():
                size += len(piece)
                most = max(most, process.memory_info().rss)
    assert size > LARGE
    assert most - before < LARGE


async def test_the_command_line_and_grpc_show_the_same(
    site: WebServer, address: str, database_url: str, tmp_path: Path
) -> None:
    for where in (f"--database-url={database_url}", f"--server={site.url}"):
        shown = run(tmp_path, "job", "7", where).stdout
        assert "(the beginning of 3" in shown
        assert "whole: tidemill value job/result/7)" in shown
        written = run(tmp_path, "value", "job/args/7", where)
        assert json.loads(written.stdout) == {"order": "a" * 70_000}, written.stderr
        gone = run(tmp_path, "value", "job/args/99", where)
        assert (gone.returncode, gone.stderr) == (1, "error: there is no value job/args/99\n")
    async with rpc_client(address) as rpc:
        job = await rpc("Jobs", "GetJob", id=7)
        place = json.loads(job.args)["$cut"]["whole"]
        pieces = [piece.data async for piece in rpc.many("Live", "ReadValue", place=place)]
    assert json.loads(b"".join(pieces)) == {"order": "a" * 70_000}
