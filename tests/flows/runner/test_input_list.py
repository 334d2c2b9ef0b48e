"""What flows ask people is in the list of inputs, and is answered there like what a dag asks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import asking_app
from tests.support.waiting import PATIENT, eventually
from tests.support.web import web_server
from tidemill import App


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[App]:
    """Run workers in this process; the server is another."""
    app = asking_app.make_app(database_url=database_url, **PATIENT)
    async with app.running():
        yield app


@pytest.fixture
async def api(database_url: str, shop: App) -> AsyncIterator[httpx.AsyncClient]:
    async with web_server(database_url, app=Path(asking_app.__file__)) as web, web.client() as client:
        yield client


async def inputs(api: httpx.AsyncClient, run: int) -> list[dict[str, Any]]:
    return (await api.get("/inputs", params={"run": run})).json()["items"]


async def asked(api: httpx.AsyncClient, run: int, prompt: str) -> dict[str, Any]:
    """What a run asks, once it asks this."""

    async def look() -> Any:
        return [each for each in await inputs(api, run) if each["prompt"] == prompt]

    (found,) = await eventually(look, what=f"r{run} asks {prompt}")
    return found


async def start(api: httpx.AsyncClient, workflow: str, **args: Any) -> int:
    return (await api.post("/runs", json={"workflow": workflow, "args": args})).json()["id"]


async def run_is(api: httpx.AsyncClient, run: int, state: str) -> dict[str, Any]:
    async def look() -> Any:
        found = (await api.get(f"/runs/{run}")).json()
        return found if found["state"] == state else None

    return await eventually(look, what=f"r{run} is {state}")


async def submit(api: httpx.AsyncClient, question: dict[str, Any], value: Any, **more: Any) -> httpx.Response:
    return await api.post(f"/runs/{question['run_id']}/inputs/{question['node']}", json={"value": value, **more})


async def test_a_step_that_waits_for_a_person_is_listed_with_a_form_and_answered_there(api: httpx.AsyncClient) -> None:
    run = await start(api, "Publishing", title="On tides")

    async def waits_for_a_program() -> bool:
        ticks = (await api.get(f"/runs/{run}/ticks")).json()["items"]
        return any(tick["data"].get("note", {}).get("kind") == "asked" for tick in ticks)

    await eventually(waits_for_a_program, what="it waits")
    assert await inputs(api, run) == []
    assert (await api.post(f"/runs/{run}/events", json={"type": "Ping"})).status_code == 202
    question = await asked(api, run, "Print On tides?")
    assert (question["shape"], question["workflow"], question["due_at"]) == ("flow", "Publishing", None)
    assert question["node"].startswith("publish/")
    assert list(question["schema"]["properties"]) == ["ok", "note"], "by whom is said already"
    assert question["schema"]["required"] == ["ok"]
    assert (await api.get("/overview")).json()["counts"]["inputs_open"] == 1
    assert [line["asks"] for line in (await api.get("/runs")).json()["items"]] == [1]

    for wrong in ({"ok": "perhaps"}, {}, "yes"):
        refused = await submit(api, question, wrong)
        assert refused.status_code == 422, refused.text
    assert len(await inputs(api, run)) == 1
    for _ in range(2):  # The same key again is the same answer.
        taken = await submit(api, question, {"ok": True, "note": "at last"}, key="first")
        assert (taken.status_code, taken.json()) == (200, {"taken": True})
    assert (await submit(api, question, {"ok": False})).status_code == 409
    assert (await run_is(api, run, "succeeded"))["result"] == {"ok": True, "note": "at last", "by": "editor"}
    assert await inputs(api, run) == []
    trail = (await api.get("/audit", params={"action": "run.submit"})).json()["items"]
    assert [(each["target"], each["after"]["value"]) for each in trail] == [
        (f"r{run} {question['node']}", {"ok": True, "note": "at last"})
    ]


async def test_a_question_that_a_step_returns_is_asked_until_another_step_has_the_answer(
    api: httpx.AsyncClient,
) -> None:
    run = await start(api, "Scan")
    first = await asked(api, run, "How many?")
    assert (first["node"], first["schema"]) == ("take", None)
    assert (await submit(api, first, {"response": 12})).status_code == 200
    second = await asked(api, run, "Of what?")

    # A fork asks by itself what the run asked then; a run that is cancelled asks nothing any more.
    ticks = (await api.get(f"/runs/{run}")).json()["ticks"]
    fork = (await api.post(f"/runs/{run}/fork", json={"at": ticks})).json()["id"]
    await asked(api, fork, "Of what?")
    assert (await api.post(f"/runs/{fork}/cancel")).status_code == 202
    await run_is(api, fork, "cancelled")
    assert await inputs(api, fork) == []

    assert (await submit(api, second, {"response": "eggs"})).status_code == 200
    assert (await run_is(api, run, "succeeded"))["result"] == [12, "eggs"]
    assert (await api.get("/inputs")).json()["items"] == []
