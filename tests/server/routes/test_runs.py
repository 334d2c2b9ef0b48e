"""Runs over HTTP: started, followed, sent events, forked, answered, repeated, cancelled; the server owns none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from tests.support.waiting import PATIENT, eventually
from tests.support.web import listening, web_server
from tests.support.web_app import make_app
from tidemill import App
from tidemill.store.database import Database


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[App]:
    """Run workers and workers in this process; the server is another."""
    app = make_app(database_url=database_url, **PATIENT)
    async with app.running():
        yield app


@pytest.fixture
async def api(database_url: str, shop: App) -> AsyncIterator[httpx.AsyncClient]:
    async with web_server(database_url) as web, web.client() as client:
        yield client


async def get(api: httpx.AsyncClient, path: str, **params: Any) -> Any:
    response = await api.get(path, params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def post(api: httpx.AsyncClient, path: str, body: Any, expect: int) -> Any:
    response = await api.post(path, json=body)
    assert response.status_code == expect, response.text
    return response.json()


async def ended(api: httpx.AsyncClient, run: int) -> Any:
    async def look() -> Any:
        found = await get(api, f"/runs/{run}")
        return found if found["state"] not in ("running", "needs_attention") else None

    return await eventually(look)


async def ticks_of(api: httpx.AsyncClient, run: int, least: int) -> Any:
    async def look() -> Any:
        found = await get(api, f"/runs/{run}/ticks")
        return found if found["total"] >= least else None

    return await eventually(look)


async def test_a_flow_is_started_followed_and_sent_its_word(api: httpx.AsyncClient) -> None:
    made = await post(api, "/runs", {"workflow": "Asking", "args": {"who": "ann"}, "unique_key": "k"}, 201)
    assert made["created"]
    assert (await post(api, "/runs", {"workflow": "Asking", "unique_key": "k"}, 201)) == {
        "id": made["id"],
        "created": False,
    }
    run = made["id"]
    async with listening(api, f"/runs/{run}/stream") as shown:
        await eventually(lambda: "what is the word?" in str(shown.events))
        await post(api, f"/runs/{run}/events", {"type": "Word", "fields": {"word": "tide"}}, 202)
        await eventually(lambda: shown.events[-1][0] == "end")
    assert "it is tide" in str(shown.events)
    assert shown.events[-1][1]["state"] == "succeeded"
    done = await ended(api, run)
    assert "tide" in str(done["result"])
    assert done["origin"]["by"] == "local"
    async with listening(api, f"/runs/{run}/stream", "0") as again:
        await eventually(lambda: again.events[-1][0] == "end")
    assert [data for kind, data in again.events if kind == "shown"] == [
        data for kind, data in shown.events if kind == "shown"
    ]


async def test_a_runs_state_is_shown_at_every_tick_and_forked_from_one(api: httpx.AsyncClient) -> None:
    run = (await post(api, "/runs", {"workflow": "Asking", "args": {"who": "bob"}}, 201))["id"]
    await eventually(lambda: _waits(api, run))
    await post(api, f"/runs/{run}/events", {"type": "Word", "fields": {"word": "ebb"}}, 202)
    await ended(api, run)
    journal = await get(api, f"/runs/{run}/ticks")
    assert [tick["seq"] for tick in journal["items"]] == list(range(1, journal["total"] + 1))
    assert journal["items"][0]["kind"] == "started"
    page = await get(api, f"/runs/{run}/ticks", after=1, limit=1)
    assert [tick["seq"] for tick in page["items"]] == [2]
    states = [await get(api, f"/runs/{run}/state", at=tick) for tick in range(journal["total"] + 1)]
    assert states[-1]["state"]["status"] == "succeeded"
    assert states[1]["state"]["status"] == "running"
    heard = next(tick["seq"] for tick in journal["items"] if tick["kind"] == "received")
    event = {"type": "Word", "fields": {"word": "flood"}}
    made = await post(api, f"/runs/{run}/fork", {"at": heard, "event": event}, 201)
    assert "flood" in str((await ended(api, made["id"]))["result"])
    assert (await get(api, "/runs", forked_from=run))["items"][0]["id"] == made["id"]


async def test_a_dag_is_started_answered_and_repeated(api: httpx.AsyncClient) -> None:
    run = (await post(api, "/runs", {"workflow": "order", "args": {"order": 5}}, 201))["id"]
    asked = await eventually(lambda: _asked(api, run))
    assert asked["prompt"] == "Really?"
    assert asked["schema"]["required"] == ["answer"]
    tree = await get(api, f"/runs/{run}/tree")
    states = {node["node"]: node["state"] for node in tree["nodes"]}
    assert states == {"pack": "succeeded", "approve": "waiting", "ship": "pending"}
    assert "waits for an answer" in " ".join((await get(api, f"/runs/{run}"))["why"])
    wrong = await post(api, f"/runs/{run}/inputs/approve", {"value": {"answer": "maybe"}}, 409)
    assert "does not fit" in wrong["detail"]
    assert (await post(api, f"/runs/{run}/inputs/approve", {"value": {"answer": "yes"}, "key": "1"}, 200))["taken"]
    assert (await post(api, f"/runs/{run}/inputs/approve", {"value": {"answer": "yes"}, "key": "1"}, 200))["taken"]
    await post(api, f"/runs/{run}/inputs/approve", {"value": {"answer": "no"}}, 409)
    assert (await ended(api, run))["state"] == "succeeded"
    early = await get(api, f"/runs/{run}/tree", at=1)
    assert early["tick"] == 1
    assert "succeeded" not in {node["state"] for node in early["nodes"]}
    jobs = await get(api, "/jobs", run=run)
    assert [job["task"] for job in jobs["items"]] == ["send", "send"]
    again = await post(api, f"/runs/{run}/rerun", {"start": "approve", "edited": {"answer": "no"}}, 201)
    assert (await ended(api, again["id"]))["state"] == "succeeded"


async def test_runs_are_cancelled_one_or_all_that_match(api: httpx.AsyncClient) -> None:
    flows = [(await post(api, "/runs", {"workflow": "Asking"}, 201))["id"] for _ in range(3)]
    dag = (await post(api, "/runs", {"workflow": "order", "args": {"order": 1}}, 201))["id"]
    await eventually(lambda: _asked(api, dag))
    for run in flows:
        await eventually(lambda run=run: _waits(api, run))
    await post(api, f"/runs/{flows[0]}/cancel", {"reason": "not needed"}, 202)
    told = await ended(api, flows[0])
    assert (told["state"], told["note"]) == ("cancelled", "cancelled by local: not needed")
    assert told["why"] == [told["note"]]
    assert (await post(api, f"/runs/{flows[0]}/cancel", {}, 409))["detail"].endswith("cancelled")
    preview = await post(api, "/runs/cancel/preview", {"workflow": "Asking"}, 200)
    assert preview["count"] == 2
    done = await post(api, "/runs/cancel", {"filter": {"workflow": "Asking", "up_to": preview["up_to"]}}, 202)
    assert done["count"] == preview["count"]
    for run in flows:
        assert (await ended(api, run))["state"] == "cancelled"
    assert (await get(api, f"/runs/{flows[1]}"))["note"] == "cancelled by local"
    assert (await get(api, f"/runs/{dag}"))["state"] == "running"
    await post(api, "/runs/cancel", {"ids": [dag]}, 202)
    assert (await ended(api, dag))["state"] == "cancelled"


async def test_no_run_is_started_that_the_audit_does_not_know_of(api: httpx.AsyncClient, database: Database) -> None:
    flow = (await post(api, "/runs", {"workflow": "Asking", "unique_key": "k"}, 201))["id"]
    dag = (await post(api, "/runs", {"workflow": "order", "args": {"order": 1}}, 201))["id"]
    await eventually(lambda: _waits(api, flow))
    await eventually(lambda: _asked(api, dag))
    await post(api, "/runs/cancel", {"ids": [dag]}, 202)
    await ended(api, dag)
    acts = [
        ("/runs", {"workflow": "Asking"}),
        ("/runs", {"workflow": "order", "args": {"order": 2}}),
        (f"/runs/{flow}/fork", {"at": 1}),
        (f"/runs/{dag}/rerun", {}),
    ]
    await database.fetch("ALTER TABLE tidemill.audit ADD CONSTRAINT full_up CHECK (false) NOT VALID")
    for path, body in acts:
        assert (await api.post(path, json=body)).status_code >= 500, path
    assert len((await get(api, "/runs"))["items"]) == 2
    await database.fetch("ALTER TABLE tidemill.audit DROP CONSTRAINT full_up")
    made = [(await post(api, path, body, 201))["id"] for path, body in acts]
    await post(api, "/runs", {"workflow": "Asking", "unique_key": "k"}, 201)
    trail = (await get(api, "/audit", action="run", limit=5))["items"]
    assert [(each["action"], each["target"], each["after"]) for each in reversed(trail)] == [
        ("run.start", f"r{made[0]}", {"workflow": "Asking", "created": True}),
        ("run.start", f"r{made[1]}", {"workflow": "order", "created": True}),
        ("run.fork", f"r{flow}", {"run": made[2], "at": 1}),
        ("run.rerun", f"r{dag}", {"run": made[3], "start": None, "edited": False}),
        ("run.start", f"r{flow}", {"workflow": "Asking", "created": False}),
    ]


async def test_runs_of_all_shapes_are_in_one_list(api: httpx.AsyncClient) -> None:
    flow = (await post(api, "/runs", {"workflow": "Asking", "unique_key": "a-key"}, 201))["id"]
    dag = (await post(api, "/runs", {"workflow": "order", "args": {"order": 1}}, 201))["id"]

    async def listed(**params: Any) -> list[int]:
        return [run["id"] for run in (await get(api, "/runs", **params))["items"]]

    assert await listed() == [dag, flow]
    assert await listed(shape="dag") == [dag]
    assert await listed(shape="flow") == [flow]
    assert await listed(workflow="Asking") == [flow]
    assert await listed(key="a-key") == [flow]
    assert await listed(state="failed") == []
    assert await listed(state=["running", "failed"]) == [dag, flow]
    page = await get(api, "/runs", limit=1)
    assert [run["id"] for run in page["items"]] == [dag]
    assert [run["id"] for run in (await get(api, "/runs", limit=1, cursor=page["next"]))["items"]] == [flow]
    found = (await get(api, "/search", q="a-key"))["items"]
    assert [(hit["kind"], hit["id"]) for hit in found] == [("run", str(flow))]
    names = {(item["name"], item["shape"]) for item in (await get(api, "/workflows"))["items"]}
    assert names == {("Asking", "flow"), ("order", "dag")}


async def test_what_a_run_cannot_take_is_refused(api: httpx.AsyncClient) -> None:
    flow = (await post(api, "/runs", {"workflow": "Asking"}, 201))["id"]
    dag = (await post(api, "/runs", {"workflow": "order", "args": {"order": 1}}, 201))["id"]
    await ticks_of(api, flow, 1)
    await post(api, f"/runs/{flow}/events", {"type": "Nothing"}, 422)
    await post(api, f"/runs/{flow}/events", {"type": "Word", "fields": {}}, 422)
    await post(api, f"/runs/{flow}/events", {"type": "Word", "fields": {"word": [1]}}, 422)
    await post(api, f"/runs/{dag}/events", {"type": "Word", "fields": {"word": "x"}}, 422)
    await post(api, f"/runs/{flow}/fork", {"at": 0}, 422)
    await post(api, f"/runs/{flow}/fork", {"at": 10**9}, 422)
    await post(api, f"/runs/{dag}/fork", {"at": 1}, 422)
    await post(api, f"/runs/{flow}/rerun", {}, 422)
    await post(api, f"/runs/{flow}/inputs/x", {"value": 1}, 409)
    await post(api, f"/runs/{dag}/inputs/nobody", {"value": 1}, 409)
    await post(api, "/runs/cancel", {"filter": {"state": ["succeeded"]}}, 422)
    await post(api, "/runs/cancel", {}, 422)
    for path in (f"/runs/{flow}/state?at=-1", f"/runs/{flow}/state?at=99999", f"/runs/{flow}/tree"):
        assert (await api.get(path)).status_code == 422, path


async def _waits(api: httpx.AsyncClient, run: int) -> bool:
    found = await get(api, f"/runs/{run}/state")
    return any(work["waiting"] for work in found["state"].get("works", ()))


async def _asked(api: httpx.AsyncClient, run: int) -> Any:
    items = (await get(api, "/inputs", run=run))["items"]
    return items[0] if items else None
