"""Pipelines over HTTP: a real pipeline at work in this process, and a server in another that shows and changes it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.pipelines import put, tree, update
from tests.support.waiting import PATIENT, eventually
from tests.support.web import listening, web_server
from tidemill import App
from tidemill.engine.application.load_app import load_module
from tidemill.store.database import Database

PRESS_APP = Path(__file__).resolve().parents[2] / "support" / "press_app.py"
press_app = load_module(str(PRESS_APP))  # as the server does: the name of its module is part of its code
DAYS = [f"2026-01-0{number}" for number in range(1, 8)]


@pytest.fixture
async def press(database_url: str, tmp_path: Path) -> AsyncIterator[App]:
    """The builder that keeps the pipeline up to date, in this process."""
    put(tmp_path, {f"notes/{day}.txt": f"tide of {day}\n" for day in DAYS})
    app = press_app.make_app(tmp_path, database_url=database_url, **PATIENT)
    async with app.running():
        yield app


@pytest.fixture
async def api(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx.AsyncClient]:
    monkeypatch.setenv("PRESS_ROOT", str(tmp_path))
    async with web_server(database_url, app=PRESS_APP) as web, web.client() as client:
        yield client


async def get(api: httpx.AsyncClient, address: str, /, **params: Any) -> Any:
    response = await api.get(address, params=params)
    assert response.status_code == 200, response.text
    return response.json()


async def post(api: httpx.AsyncClient, path: str, body: Any, expect: int = 200) -> Any:
    response = await api.post(path, json=body)
    assert response.status_code == expect, response.text
    return response.json()


async def until(api: httpx.AsyncClient, stage: str, **counts: int) -> None:
    """Wait until the states of a stage stand so."""

    async def look() -> bool:
        view = await get(api, "/pipelines/press")
        found = next(each["counts"] for each in view["stages"] if each["name"] == stage)
        return found == counts

    await eventually(look, what=f"{stage} is {counts}")


async def audited(api: httpx.AsyncClient, action: str) -> list[dict[str, Any]]:
    return (await get(api, "/audit", action=action))["items"]


async def test_the_grid_shows_how_every_state_stands_and_each_what_it_is_made_from_and_holds(
    press: App, api: httpx.AsyncClient, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for stage in ("tidy", "page"):
        await until(api, stage, fresh=7)
    await until(api, "index", fresh=1)
    (view,) = (await get(api, "/pipelines"))["items"]
    assert (view["name"], view["kept"], view["counts"]) == ("press", True, {"fresh": 15})
    assert [(stage["name"], stage["takes"], stage["queue"]) for stage in view["stages"]] == [
        ("tidy", [], None),
        ("page", ["tidy"], None),
        ("index", ["page"], "pipelines"),
    ]
    assert view["bytes"] == sum(stage["bytes"] for stage in view["stages"]) > 0
    grid = await get(api, "/pipelines/press/grid", limit=3)
    assert [group["by"] for group in grid["groups"]] == ["day", "*"]
    assert (grid["stages"], grid["total"], grid["before"]) == (["tidy", "page"], 7, 0)
    seen = [row["entity"] for row in grid["items"]]
    while grid["next"]:
        grid = await get(api, "/pipelines/press/grid", limit=3, cursor=grid["next"])
        assert grid["before"] == len(seen)
        seen += [row["entity"] for row in grid["items"]]
    assert seen == list(reversed(DAYS))
    rows = (await get(api, "/pipelines/press/grid", order="asc", text="-03", stage="page"))["items"]
    assert rows == [{"entity": "2026-01-03", "cells": ["fresh"]}]
    only = await get(api, "/pipelines/press/grid", by="*")
    assert (only["stages"], only["items"]) == (["index"], [{"entity": "", "cells": ["fresh"]}])
    assert (await get(api, "/pipelines/press/grid", state=["failed", "needs_attention"]))["items"] == []
    graph = await get(api, "/pipelines/press/graph")
    assert [tuple(each) for each in graph["arrows"]] == [
        ("notes/{day}.txt", "tidy"),
        ("tidy", "page"),
        ("page", "index"),
    ]
    assert graph["mermaid"].startswith("flowchart")
    assert graph["svg"].startswith("<svg")
    assert ("pipeline", "press") in {(hit["kind"], hit["id"]) for hit in (await get(api, "/search", q="pre"))["items"]}

    story = await get(api, "/pipelines/press/state", stage="page", entity=DAYS[0])
    assert story["why"] == ["It is up to date: the current code built it from its current inputs."]
    (made_from,) = story["inputs"]
    assert made_from["path"] == "clean/2026-01-01.txt"
    assert made_from["made_by"] == {"stage": "tidy", "entity": DAYS[0], "state": "fresh"}
    assert not made_from["changed"]
    assert story["taken_by"] == [{"stage": "index", "entity": "", "state": "fresh"}]
    assert story["code"]["built"] == story["code"]["now"]
    assert story["builds"][0]["took"] is not None
    whole = await get(api, "/pipelines/press/state", stage="index")
    assert [each["made_by"]["entity"] for each in whole["inputs"]] == DAYS

    answer = await api.get("/pipelines/press/content", params={"path": "page/2026-01-01.html"})
    shown = answer.json()
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (shown["kind"], shown["media_type"], shown["truncated"]) == ("text", "text/plain", False)
    assert shown["text"].startswith("<script>")
    put(tmp_path, {"notes/2026-02-01.txt": "ä" * 100_000})
    picture = base64.b64decode("iVBORw0KGgoAAAANSUhEUg==")
    (tmp_path / "notes/2026-02-02.txt").write_bytes(picture)
    (tmp_path / "notes/2026-02-03.txt").write_bytes(b"unreadable\x00\xff")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "secret"
    elsewhere.write_text("not for browsers")
    (tmp_path / "notes/2026-02-04.txt").symlink_to(elsewhere)
    (tmp_path / "notes/2026-02-05.txt").symlink_to(tmp_path / "notes/2026-02-01.txt")
    await until(api, "tidy", fresh=10, failed=2)
    long = await get(api, "/pipelines/press/content", path="notes/2026-02-01.txt")
    assert (long["size"], long["truncated"], set(long["text"])) == (200_000, True, {"ä"})
    drawn = await get(api, "/pipelines/press/content", path="notes/2026-02-02.txt")
    assert (drawn["kind"], base64.b64decode(drawn["data"])) == ("picture", picture)
    assert (await get(api, "/pipelines/press/content", path="notes/2026-02-03.txt"))["kind"] == "bytes"
    assert (await get(api, "/pipelines/press/content", path="notes/2026-02-05.txt"))["kind"] == "text"
    outside = await api.get("/pipelines/press/content", params={"path": "notes/2026-02-04.txt"})
    assert (outside.status_code, "not for browsers" in outside.text) == (404, False), "a link out of the folder"
    (tmp_path / "secret.txt").write_text("not for you")
    for path in (
        "secret.txt",
        "../secret.txt",
        "notes/../secret.txt",
        "/etc/passwd",
        "clean/.manifest.json",
        "",
        "\x00",
    ):
        assert (await api.get("/pipelines/press/content", params={"path": path})).status_code == 404, path


async def test_a_failed_state_tells_its_story_and_is_retried(
    press: App, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    await until(api, "page", fresh=7)
    async with listening(api, "/changes") as heard:
        put(tmp_path, {"notes/2026-01-09.txt": "unreadable"})
        await until(api, "tidy", fresh=7, failed=1)
        await eventually(lambda: "pipelines" in heard.names("kinds"))
    (row,) = (await get(api, "/pipelines/press/grid", state="failed"))["items"]
    assert row == {"entity": "2026-01-09", "cells": ["failed", "blocked"]}
    (broken,) = (await get(api, "/overview"))["failed_states"]
    assert (broken["pipeline"], broken["states"], broken["needs_attention"]) == ("press", 1, 0)
    assert (broken["stage"], broken["entity"]) == ("tidy", "2026-01-09")
    assert "cannot be read" in broken["note"]
    story = await get(api, "/pipelines/press/state", stage="tidy", entity="2026-01-09")
    assert (story["state"], story["reason"], story["built_at"]) == ("failed", "backing_off", None)
    assert story["why"][0].startswith("It failed once")
    assert "cannot be read" in story["why"][0]
    assert story["failure"]["attempts"] == 1
    assert "ValueError" in story["failure"]["log"]
    assert story["failure"]["retry_at"] is not None
    assert [build["outcome"] for build in story["builds"]] == ["failed"]
    assert "10 characters" in story["builds"][0]["log"]
    assert story["taken_by"] == [{"stage": "page", "entity": "2026-01-09", "state": "blocked"}]
    assert (await post(api, "/pipelines/press/retry/preview", {}))["sample"] == ["tidy/2026-01-09"]
    done = await post(api, "/pipelines/press/retry", {"stage": "tidy", "entities": ["2026-01-09"], "count": 1})
    assert done["count"] == 1

    async def attempts() -> bool:
        again = await get(api, "/pipelines/press/state", stage="tidy", entity="2026-01-09")
        return len(again["builds"]) == 2

    await eventually(attempts)
    put(tmp_path, {"notes/2026-01-09.txt": "readable"})
    await until(api, "page", fresh=8)
    assert (await get(api, "/overview"))["failed_states"] == []
    (entry,) = await audited(api, "pipeline.retry")
    assert (entry["who"], entry["target"], entry["after"]["states"]) == ("local", "press/tidy", 1)


async def test_what_is_to_be_built_again_is_counted_first_and_a_backfill_says_how_far_it_is(
    press: App, api: httpx.AsyncClient
) -> None:
    await until(api, "index", fresh=1)
    wanted = {"stage": "tidy", "entities": DAYS[:2], "downstream": True}
    preview = await post(api, "/pipelines/press/invalidate/preview", wanted)
    assert (preview["count"], preview["stages"]) == (5, {"tidy": 2, "page": 2, "index": 1})
    assert preview["approvals"] == {}
    refused = await post(api, "/pipelines/press/invalidate", {**wanted, "count": 4}, 409)
    assert "the preview said 4" in refused["detail"]
    key = {"Idempotency-Key": "once"}
    answers = [await api.post("/pipelines/press/invalidate", json={**wanted, "count": 5}, headers=key) for _ in "12"]
    assert [answer.json()["count"] for answer in answers] == [5, 5]
    await until(api, "index", fresh=1)
    for stage in ("tidy", "page"):

        async def rebuilt(stage: str = stage) -> bool:
            builds = (await get(api, "/pipelines/press/builds", stage=stage, limit=200))["items"]
            return sorted(each["entity"] for each in builds) == sorted([*DAYS, *DAYS[:2]])

        await eventually(rebuilt)
    assert len(await audited(api, "pipeline.invalidate")) == 3, "one entry for each stage, and the repetition has none"

    await post(api, "/pipelines/press/pause", {"stage": "tidy"})
    wanted = {"stage": "tidy", "first": DAYS[1], "last": DAYS[4]}
    preview = await post(api, "/pipelines/press/backfill/preview", wanted)
    assert (preview["count"], preview["approvals"]) == (4, {"tidy": 4})
    made = await post(api, "/pipelines/press/backfill", {**wanted, "count": 4, "approve": True}, 201)
    (begun,) = (await get(api, "/pipelines/press/backfills"))["items"]
    assert (begun["id"], begun["total"], begun["left"], begun["failed"]) == (made["id"], 4, 4, 0)
    await until(api, "tidy", fresh=3, paused=4)
    await post(api, "/pipelines/press/resume", {"stage": "tidy"})

    async def left() -> bool:
        return (await get(api, "/pipelines/press/backfills"))["items"][0]["left"] == 0

    await eventually(left)
    await until(api, "tidy", fresh=7)
    await post(api, "/pipelines/press/pause", {})
    second = await post(api, "/pipelines/press/backfill", {"stage": "page", "approve": True}, 201)
    stopped = await post(api, f"/pipelines/press/backfills/{second['id']}/stop", {})
    assert stopped == {"id": second["id"], "left": 7}
    await until(api, "page", fresh=7)
    await post(api, f"/pipelines/press/backfills/{second['id']}/stop", {}, 404)
    paused = await audited(api, "pipeline.pause")
    assert [(entry["target"], entry["before"], entry["after"]) for entry in paused] == [
        ("press", {"paused_by": None}, {"paused_by": "local"}),
        ("press/tidy", {"paused_by": None}, {"paused_by": "local"}),
    ]
    assert [entry["after"]["states"] for entry in await audited(api, "pipeline.backfill")] == [7, 4]


async def test_a_backfill_with_a_rate_has_its_states_built_some_at_a_time(press: App, api: httpx.AsyncClient) -> None:
    async def built() -> list[dict[str, Any]]:
        return (await get(api, "/pipelines/press/builds", stage="tidy", limit=200))["items"]

    async def newest() -> dict[str, Any]:
        return (await get(api, "/pipelines/press/backfills"))["items"][0]

    await until(api, "tidy", fresh=7)
    wanted = {"stage": "tidy", "approve": True}
    for wrong in ("0/s", "fast", "1e9/s", 1e-9):
        await post(api, "/pipelines/press/backfill", {**wanted, "rate": wrong}, 422)
    slow = await post(api, "/pipelines/press/backfill", {**wanted, "rate": "1/h"}, 201)
    assert slow["total"] == 7

    async def one_is_built() -> bool:
        return len(await built()) == 8 and (await newest())["left"] == 6

    await eventually(one_is_built)
    assert (await newest())["rate"] == 1 / 3600
    stopped = await post(api, f"/pipelines/press/backfills/{slow['id']}/stop", {})
    assert stopped["left"] == 6

    await post(api, "/pipelines/press/backfill", {**wanted, "rate": "4/s"}, 201)

    async def all_are_built() -> bool:
        return (await newest())["left"] == 0

    await eventually(all_are_built)
    last = max(datetime.fromisoformat(each["at"]) for each in await built())
    took = (last - datetime.fromisoformat((await newest())["started_at"])).total_seconds()
    assert took > 6 / 4 - 0.1, "the seventh of four a second"
    assert len(await built()) == 15
    assert [entry["after"]["rate"] for entry in await audited(api, "pipeline.backfill")] == [4.0, 1 / 3600]


async def test_a_change_of_code_that_would_rebuild_much_waits_for_approval(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, {f"notes/{day}.txt": f"tide of {day}\n" for day in DAYS})
    await update(database, press_app.make_press(tmp_path))
    monkeypatch.setenv("PRESS_ROOT", str(tmp_path))
    monkeypatch.setenv("PRESS_VERSION", "2")
    async with web_server(database_url, app=PRESS_APP) as web, web.client() as api:
        view = await get(api, "/pipelines/press")
        assert not view["kept"]
        assert view["stages"][0]["counts"] == {"needs_approval": 7}
        assert view["stages"][0]["approval"]["states"] == 7
        assert view["stages"][0]["approval"]["reason"] == "code_changed"
        assert any("other code of stage tidy" in problem for problem in view["problems"])
        plan = await get(api, "/pipelines/press/plan", limit=2)
        assert (plan["builds"], plan["holds"], len(plan["steps"])) == (0, 15, 2)
        assert ("tidy", "needs_approval", 7) in {(p["stage"], p["reason"], p["states"]) for p in plan["parts"]}
        approved = await post(api, "/pipelines/press/approve", {"stage": "tidy"})
        assert (approved["stage"], approved["states"]) == ("tidy", 7)
        assert (await get(api, "/pipelines/press"))["stages"][0]["counts"] == {"stale": 7}
        story = await get(api, "/pipelines/press/state", stage="tidy", entity=DAYS[0])
        assert story["reason"] == "code_changed"
        assert "tidemill up" in story["why"][1]
        accepted = await post(api, "/pipelines/press/accept", {"stage": "tidy"})
        assert accepted["count"] == 7
        assert (await get(api, "/pipelines/press"))["counts"] == {"fresh": 15}
        (entry,) = await audited(api, "pipeline.approve")
        assert entry["before"] == {"code": None}
        assert entry["after"]["code"] == view["stages"][0]["code"]


async def test_orphans_are_listed_and_then_cleaned_up(
    database: Database, api: httpx.AsyncClient, tmp_path: Path
) -> None:
    put(tmp_path, {f"notes/{day}.txt": f"tide of {day}\n" for day in DAYS})
    await update(database, press_app.make_press(tmp_path))
    (tmp_path / f"notes/{DAYS[0]}.txt").unlink()
    (tmp_path / f"clean/{DAYS[1]}.txt").unlink()
    (tmp_path / f"notes/{DAYS[1]}.txt").unlink()
    await post(api, "/pipelines/press/pause", {})  # so that the server looks again
    orphans = await get(api, "/pipelines/press/orphans")
    assert [(each["stage"], each["entity"]) for each in orphans["items"]] == [
        ("tidy", DAYS[0]),
        ("tidy", DAYS[1]),
        ("page", DAYS[1]),
    ]
    assert orphans["bytes"] > 0
    await post(api, "/pipelines/press/clean", {"how": "delete", "count": 2}, 409)
    assert f"clean/{DAYS[0]}.txt" in tree(tmp_path)
    put(tmp_path, {f"notes/{DAYS[0]}.txt": f"tide of {DAYS[0]}\n"})
    await database.fetch("ALTER TABLE tidemill.audit ADD CONSTRAINT full_up CHECK (false) NOT VALID")
    assert (await api.post("/pipelines/press/clean", json={"how": "delete"})).status_code >= 500
    assert f"page/{DAYS[1]}.html" in tree(tmp_path), "nothing is cleaned up that the audit does not know of"
    await database.fetch("ALTER TABLE tidemill.audit DROP CONSTRAINT full_up")
    done = await post(api, "/pipelines/press/clean", {})
    assert done == {"kept": 0, "archived": 2, "deleted": 0}
    assert f"page/{DAYS[1]}.html" not in tree(tmp_path)
    assert list(tmp_path.glob(f".archive/*/page/{DAYS[1]}.html"))
    assert f"clean/{DAYS[0]}.txt" in tree(tmp_path), "what has inputs again is left alone"
    (entry,) = await audited(api, "pipeline.clean")
    assert (entry["before"]["orphans"], entry["after"]["archive"]) == (2, 2)
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    refused = await post(api, "/pipelines/press/clean", {"how": "delete"}, 503)
    assert "there is no folder" in refused["detail"], "what cannot be seen from here is not gone"
    (view,) = (await get(api, "/pipelines"))["items"]
    assert "there is no folder" in view["problems"][0]
    moved.rename(tmp_path)
    assert (await get(api, "/pipelines/press"))["counts"]["fresh"] > 0


KILN = """
import asyncio
from pathlib import Path

from tidemill import App
from tidemill.pipelines import Pipeline

HERE = Path(__file__).parent
app = App("pottery")
kiln = Pipeline("kiln", root=HERE / "pots")


@kiln.stage(input="raw/{pot}.txt", output="fired/{pot}.txt", in_process=True)
async def fire(entity, text):
    while text == "thick" and not (HERE / "hot").exists():
        await asyncio.sleep(0.02)
    return text.upper()


app.pipeline(kiln)
"""


async def test_a_build_in_process_is_shown_while_it_runs(database_url: str, tmp_path: Path) -> None:
    put(tmp_path, {"kiln.py": KILN, "pots/raw/jug.txt": "thick", "pots/raw/cup.txt": "thin"})
    app: App = load_module(str(tmp_path / "kiln.py")).app
    app.declarations.configure(database_url=database_url, **PATIENT)

    async def status() -> Any:
        command = ["pipeline", "status", str(tmp_path / "kiln.py"), "--json", f"--database-url={database_url}"]
        told = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tidemill.cli.main", *command, stdout=asyncio.subprocess.PIPE
        )
        found = json.loads((await told.communicate())[0])[0]["stages"]
        return {stage["name"]: stage["counts"] for stage in found}

    async with web_server(database_url, app=tmp_path / "kiln.py") as web, web.client() as api, app.running():

        async def stands(**counts: int) -> None:
            async def look() -> bool:
                return (await get(api, "/pipelines/kiln"))["counts"] == counts

            await eventually(look, what=str(counts))

        await stands(fresh=1, building=1)
        story = await get(api, "/pipelines/kiln/state", stage="fire", entity="jug")
        assert (story["state"], story["job"]["id"]) == ("building", None)
        assert f"being built now: by {socket.gethostname()}:" in " ".join(story["why"])
        assert await status() == {"fire": {"fresh": 1, "building": 1}}
        (tmp_path / "hot").touch()
        await stands(fresh=2)
        assert await status() == {"fire": {"fresh": 2}}


async def test_a_webhook_stores_an_event_once_and_what_makes_no_sense_is_refused(
    api: httpx.AsyncClient, tmp_path: Path
) -> None:
    (known,) = (await get(api, "/triggers"))["items"]
    assert (known["name"], known["starts"], known["task"]) == ("greet", ["hook"], "workflow/greet")
    key = {"Idempotency-Key": "event-7"}
    made = [await api.post("/triggers/greet", json={"who": "Ada"}, headers=key) for _ in "12"]
    assert [answer.status_code for answer in made] == [202, 202]
    assert made[0].json() == made[1].json()
    (job,) = (await get(api, "/jobs", task="workflow/greet"))["items"]
    args = (await get(api, f"/jobs/{job['id']}"))["args"]
    done = await press_app.make_app(tmp_path).pipelines.trigger_task("greet")(**args)
    assert done["said"] == [{"text": "hello Ada"}]
    await post(api, "/triggers/nobody", {}, 404)
    (entry,) = await audited(api, "workflow.trigger")
    assert entry["after"] == {"job": job["id"]}

    put(tmp_path, {"notes/a.txt": "a"})
    for path, status in (
        ("/pipelines/none", 404),
        ("/pipelines/none/grid", 404),
        ("/pipelines/press/grid?by=month", 404),
        ("/pipelines/press/grid?state=rotten", 422),
        ("/pipelines/press/grid?stage=none", 404),
        ("/pipelines/press/grid?cursor=%21%21", 422),
        ("/pipelines/press/grid?limit=0", 422),
        ("/pipelines/press/state?stage=none", 404),
        ("/pipelines/press/state?stage=tidy&entity=a/b/c", 404),
        ("/pipelines/press/state?stage=tidy&entity=a/b/../c", 404),
        ("/pipelines/press/plan?stage=none", 404),
        ("/pipelines/press/orphans?stage=none", 404),
    ):
        answer = await api.get(path)
        assert answer.status_code == status, (path, answer.text)
        assert answer.json()["detail"], path
    for path, body, status in (
        ("invalidate", {"stage": "none"}, 404),
        ("invalidate", {"entities": ["nobody"]}, 404),
        ("invalidate", {"first": "a"}, 422),
        ("invalidate", {"nonsense": 1}, 422),
        ("invalidate/preview", {"states": ["rotten"]}, 422),
        ("backfill", {"stage": "tidy"}, 404),
        ("backfill", {}, 422),
        ("backfills/1/stop", {}, 404),
        ("pause", {"stage": "none"}, 404),
        ("approve", {"stage": "none"}, 404),
        ("accept", {"stage": "none"}, 404),
        ("clean", {"how": "burn"}, 422),
        ("clean", {"stage": "none"}, 404),
    ):
        await post(api, f"/pipelines/press/{path}", body, status)
    assert await audited(api, "pipeline") == []
