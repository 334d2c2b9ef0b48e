"""Jobs over HTTP: pages that do not shift, filters, bulk actions that do what their preview says, acting once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.support.waiting import PATIENT, eventually
from tests.support.web import WebServer, web_server
from tests.support.web_app import make_app
from tidemill import App
from tidemill.store.database import Database


@pytest.fixture
async def web(database_url: str) -> AsyncIterator[WebServer]:
    async with web_server(database_url) as running:
        yield running


@pytest.fixture
async def api(web: WebServer) -> AsyncIterator[httpx.AsyncClient]:
    async with web.client() as client:
        yield client


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[App]:
    app = make_app(database_url=database_url, **PATIENT)
    yield app
    await app.close()


async def get(api: httpx.AsyncClient, path: str, **params: Any) -> Any:
    response = await api.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def post(api: httpx.AsyncClient, path: str, body: Any = None, expect: int = 200, **headers: str) -> Any:
    response = await api.post(path, json={} if body is None else body, headers=headers)
    assert response.status_code == expect, response.text
    return response.json()


async def ids(api: httpx.AsyncClient, **params: Any) -> list[int]:
    """All pages of a listing."""
    found: list[int] = []
    cursor: str | None = None
    while True:
        page = await get(api, "/jobs", **params, **({"cursor": cursor} if cursor else {}))
        found += [job["id"] for job in page["items"]]
        cursor = page["next"]
        if cursor is None:
            return found


async def test_a_job_is_enqueued_run_and_explained(api: httpx.AsyncClient, shop: App) -> None:
    made = await post(api, "/jobs", {"task": "send", "args": {"order": 7}, "tags": ["vip"]}, 201)
    waiting = await get(api, f"/jobs/{made['id']}")
    assert waiting["state"] == "ready"
    assert "No worker serves queue mail" in " ".join(waiting["why"])
    async with shop.running():
        ended = await eventually(lambda: _in_state(api, made["id"], "succeeded"))
    assert ended["result"] == {"sent": 7}
    assert ended["origin"]["by"] == "local"
    assert any("Succeeded at attempt 1" in sentence for sentence in ended["why"])


async def test_filters_in_the_address_find_what_they_say(api: httpx.AsyncClient, shop: App) -> None:
    async with shop.running():
        good = await shop.enqueue("send", order=1, tags=["vip"])
        bad = await shop.enqueue("send", order=2, bad=True, unique_key="k2")
        other = await shop.enqueue("count", upto=5)
        for job in (good, bad, other):
            await shop.wait(job, timeout=120)
    late = await shop.enqueue("count", delay="1h")
    assert await ids(api) == [late.id, other.id, bad.id, good.id]
    assert await ids(api, state="failed") == [bad.id]
    assert await ids(api, state=["failed", "ready"]) == [late.id, bad.id]
    assert await ids(api, queue="slow") == [late.id, other.id]
    assert await ids(api, queue="slow", state="succeeded") == [other.id]
    assert await ids(api, task="send") == [bad.id, good.id]
    assert await ids(api, tag="vip") == [good.id]
    assert await ids(api, tag="nightly") == [late.id, other.id]
    assert await ids(api, key="k2") == [bad.id]
    assert await ids(api, task="send", queue="slow") == []


async def test_pages_neither_repeat_nor_miss_a_job_while_jobs_come_and_end(
    api: httpx.AsyncClient, shop: App, database: Database
) -> None:
    first = [ref.id for ref in await shop.enqueue_many("send", [{"order": n} for n in range(120)])]
    seen: list[int] = []
    cursor: str | None = None
    async with shop.running():
        while True:
            page = await get(api, "/jobs", limit=7, **({"cursor": cursor} if cursor else {}))
            seen += [job["id"] for job in page["items"]]
            await shop.enqueue_many("send", [{"order": n} for n in range(5)])
            cursor = page["next"]
            if cursor is None:
                break
    assert len(seen) == len(set(seen))
    assert [number for number in seen if number in set(first)] == sorted(first, reverse=True)


async def test_a_page_over_many_days_is_the_same_as_one_over_the_whole_history(
    api: httpx.AsyncClient, database: Database
) -> None:
    await database.run(lambda connection: connection.execute(DAYS))
    everything = await ids(api, limit=200)
    assert everything == sorted(everything, reverse=True)
    assert len(everything) == 400
    assert await ids(api, limit=3) == everything
    failed = await ids(api, state="failed", limit=4)
    rows = await database.fetch("SELECT id FROM tidemill.job_history WHERE state = 'failed' ORDER BY id DESC")
    assert failed == [row["id"] for row in rows]


async def test_the_preview_of_a_bulk_action_is_its_effect(api: httpx.AsyncClient, shop: App) -> None:
    await shop.enqueue_many("send", [{"order": n} for n in range(30)])
    await shop.enqueue_many("count", [{"upto": n} for n in range(10)])
    preview = await post(api, "/jobs/cancel/preview", {"queue": "mail"})
    assert preview["count"] == 30
    assert not preview["more"]
    await shop.enqueue_many("send", [{"order": n} for n in range(5)])  # these came after the first page was read
    done = await post(api, "/jobs/cancel", {"filter": {"queue": "mail", "up_to": preview["up_to"]}})
    assert done["count"] == preview["count"] == done["done"]
    assert len(await ids(api, state="cancelled", limit=200)) == 30
    assert len(await ids(api, state="ready", limit=200)) == 15


async def test_a_bulk_retry_reaches_what_failed_and_nothing_that_succeeded(api: httpx.AsyncClient, shop: App) -> None:
    async with shop.running():
        refs = [await shop.enqueue("send", order=n, bad=n % 2 == 0) for n in range(6)]
        for ref in refs:
            await shop.wait(ref, timeout=120)
    preview = await post(api, "/jobs/retry/preview", {"task": "send"})
    assert preview["count"] == 3
    done = await post(api, "/jobs/retry", {"filter": {"task": "send"}})
    assert (done["count"], done["asked"]) == (3, 3)
    again = await get(api, f"/jobs/{done['ids'][0]}")
    assert again["origin"]["retry_of"] in [ref.id for ref in refs]
    trail = await get(api, "/audit", action="job")
    assert {entry["action"] for entry in trail["items"]} == {"job.retry"}
    assert [entry["after"]["filter"] for entry in trail["items"]] == [{"task": "send"}]
    assert all(entry["who"] == "local" for entry in trail["items"])


async def test_a_request_with_an_idempotency_key_acts_once(api: httpx.AsyncClient) -> None:
    body = {"task": "send", "args": {"order": 1}}
    many = await asyncio.gather(*(api.post("/jobs", json=body, headers={"Idempotency-Key": "one"}) for _ in range(8)))
    first = next(response.json() for response in many if response.status_code == 201)
    assert {response.status_code for response in many} <= {201, 409}
    repeated = await api.post("/jobs", json=body, headers={"Idempotency-Key": "one"})
    assert repeated.json() == first
    assert repeated.headers["idempotency-replayed"] == "true"
    assert await ids(api) == [first["id"]]
    other = await post(api, "/jobs", {**body, "args": {"order": 2}}, 422, **{"Idempotency-Key": "one"})
    assert "another request" in other["detail"]


async def test_a_request_that_was_wrong_does_not_use_its_key_up(api: httpx.AsyncClient) -> None:
    await post(api, "/jobs", {"task": "send", "args": {}}, 422, **{"Idempotency-Key": "k"})
    await post(api, "/jobs", {"task": "send", "args": {"order": 1}}, 201, **{"Idempotency-Key": "k"})


async def test_an_unchanged_answer_is_not_sent_again(api: httpx.AsyncClient) -> None:
    first = await api.get("/jobs")
    second = await api.get("/jobs", headers={"If-None-Match": first.headers["etag"]})
    assert (second.status_code, second.content) == (304, b"")
    await post(api, "/jobs", {"task": "send", "args": {"order": 1}}, 201)
    third = await api.get("/jobs", headers={"If-None-Match": first.headers["etag"]})
    assert third.status_code == 200
    assert third.headers["etag"] != first.headers["etag"]


async def test_long_answers_are_compressed(api: httpx.AsyncClient, shop: App) -> None:
    await shop.enqueue_many("send", [{"order": n} for n in range(50)])
    plain = await api.get("/jobs", headers={"Accept-Encoding": "identity"})
    small = await api.get("/jobs", headers={"Accept-Encoding": "gzip"})
    assert small.headers["content-encoding"] == "gzip"
    assert int(small.headers["content-length"]) * 3 < int(plain.headers["content-length"])
    assert small.json() == plain.json()


WRONG = [
    ("POST", "/jobs", {"task": "nobody"}, 422, "there is no task"),
    ("POST", "/jobs", {"task": "send", "args": {"order": "x"}}, 422, "order"),
    ("POST", "/jobs", {"task": "send", "args": {"order": 1}, "priority": 99}, 422, "priority"),
    ("POST", "/jobs", {"task": "send", "args": {"order": 1}, "delay": "soon"}, 422, "delay"),
    ("POST", "/jobs", {"task": "send", "args": {"order": 1}, "colour": "red"}, 422, "colour"),
    ("POST", "/jobs", {"task": "send", "args": {"order": 1}, "unique_key": "a\u0000b"}, 422, ""),
    ("POST", "/jobs", {"task": "send", "args": {"order": 1}, "at": "2030-01-01T00:00:00"}, 422, "time zone"),
    ("POST", "/jobs", [1, 2], 422, ""),
    ("POST", "/jobs/cancel", {}, 422, "either"),
    ("POST", "/jobs/cancel", {"ids": []}, 422, "either"),
    ("POST", "/jobs/cancel", {"ids": [1], "filter": {}}, 422, "either"),
    ("POST", "/jobs/cancel", {"ids": [999]}, 404, "no job 999"),
    ("POST", "/jobs/cancel", {"ids": [-1]}, 404, "no job -1"),
    ("POST", "/jobs/cancel", {"ids": [2**70]}, 404, ""),
    ("POST", "/jobs/retry", {"filter": {"state": ["lost"]}}, 422, "no job state 'lost'"),
    ("GET", "/jobs?state=nothing", None, 422, "no job state 'nothing'"),
    ("GET", "/jobs?limit=0", None, 422, ""),
    ("GET", "/jobs?limit=100000", None, 422, ""),
    ("GET", "/jobs?cursor=abc", None, 422, "cursor"),
    ("GET", "/jobs?queue=%00", None, 422, ""),
    ("GET", "/jobs/0", None, 404, ""),
    ("GET", "/jobs/99999999999999999999999", None, 404, ""),
    ("GET", "/jobs/abc", None, 404, ""),
    ("PUT", "/queues/mail/limit", {"rate": "fast"}, 422, "rate"),
    ("PUT", "/queues/mail/limit", {"rate": -1}, 422, "rate"),
    ("PUT", "/queues/mail/limit", {"rate": "1/s", "burst": 0.1}, 422, "burst"),
    ("POST", "/workers/control", {"mode": "explode"}, 422, ""),
    ("POST", "/workers/control", {"mode": "pause", "host": ""}, 422, "host"),
    ("POST", "/schedules/nothing/run", {}, 404, "no schedule"),
    ("POST", "/runs", {"workflow": "Nothing"}, 422, "Nothing"),
    ("POST", "/runs", {"workflow": "order", "unique_key": "~x"}, 422, "unique_key="),
    ("GET", "/runs/17", None, 404, "no run 17"),
    ("GET", "/runs?shape=round", None, 422, "shape"),
    ("POST", "/runs/17/cancel", {}, 404, "no run 17"),
    ("POST", "/tokens", {"name": "", "role": "viewer"}, 422, "name"),
    ("POST", "/tokens", {"name": "x", "role": "god"}, 422, ""),
    ("POST", "/tokens", {"name": "x", "role": "viewer", "expires_in": "-5s"}, 422, ""),
    ("DELETE", "/tokens/999", None, 404, "no valid token 999"),
    ("GET", "/search?q=", None, 422, ""),
    ("GET", "/changes?topic=run:x", None, 422, "topic"),
    ("GET", "/hosts?within=-1", None, 422, ""),
    ("PATCH", "/jobs", {}, 405, "method"),
    ("GET", "/no/such/thing", None, 404, "nothing at this address"),
]


async def test_bad_input_gets_a_clear_problem_and_changes_nothing(api: httpx.AsyncClient, database: Database) -> None:
    for method, path, body, status, said in WRONG:
        response = await api.request(method, path, json=body) if body is not None else await api.request(method, path)
        told = response.json()
        assert response.status_code == status, (method, path, body, told)
        assert response.headers["content-type"] == "application/problem+json"
        assert told["status"] == status
        assert said in f"{told['detail']} {told.get('errors', '')}", (method, path, told)
    assert (await database.fetch("SELECT count(*) AS n FROM tidemill.job"))[0]["n"] == 0
    assert (await database.fetch("SELECT count(*) AS n FROM tidemill.token"))[0]["n"] == 0


async def test_names_with_slashes_are_whole_in_every_part_of_a_path(api: httpx.AsyncClient) -> None:
    name = "workflow/night watch#2"
    at = f"/schedules/{quote(name, safe='')}"
    made = await api.put(at, json={"start": "count", "every": "3h"})
    assert made.json()["name"] == name
    assert (await post(api, f"{at}/pause")) == {"name": name, "paused": True}
    assert (await get(api, f"{at}/explain"))["schedule"]["name"] == name
    assert (await api.delete(at)).status_code == 204
    missing = await api.get("/schedules/a%2fb%2Fc/explain")
    assert "no schedule 'a/b/c'" in missing.json()["detail"]
    assert (await api.get("/explain/workflow%2Fnothing")).json()["detail"].count("workflow/nothing")
    for other in ("/schedules/a/b/explain", "/no%2Fsuch/thing"):
        assert (await api.get(other)).json()["detail"].startswith("there is nothing at this address")


async def test_broken_bodies_are_told_so(web: WebServer) -> None:
    async with web.client() as api:
        for body in (b"", b"{", b"\xff\xfe", b'"text"', b'{"task": "\\ud800"}', b"[" * 5000):
            response = await api.post("/jobs", content=body, headers={"Content-Type": "application/json"})
            assert response.status_code == 422, (body[:20], response.text)


async def _in_state(api: httpx.AsyncClient, job: int, state: str) -> Any:
    found = await get(api, f"/jobs/{job}")
    return found if found["state"] == state else None


DAYS = """
CREATE TABLE tidemill.job_history_20260110 PARTITION OF tidemill.job_history
    FOR VALUES FROM ('2026-01-10') TO ('2026-01-11');
CREATE TABLE tidemill.job_history_20260111 PARTITION OF tidemill.job_history
    FOR VALUES FROM ('2026-01-11') TO ('2026-01-12');
INSERT INTO tidemill.job_history (id, finished_at, due_at, created_at, attempt, failures, losses, priority, state,
                                  queue, task, args)
SELECT n, CASE WHEN n < 130 OR n % 17 = 0 THEN timestamptz '2026-01-10 12:00+00'
               WHEN n < 250 OR n % 13 = 0 THEN timestamptz '2026-01-11 12:00+00'
               WHEN n < 300 THEN timestamptz '2025-05-05 12:00+00' ELSE now() END,
       now(), now(), 1, 0, 0, 5, CASE WHEN n % 3 = 0 THEN 'failed' ELSE 'succeeded' END, 'q', 't', '{}'
FROM generate_series(1, 400) AS n;
"""
