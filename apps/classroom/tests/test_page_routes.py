"""The teacher's page as programs see it: its addresses on a real database with a simulated lesson in it."""

from __future__ import annotations

import asyncio
import csv
import io
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime
from typing import Any

import httpx
import msgspec
import pytest

from apps.classroom.claims import TakenError, claim, claim_in, read_labels
from apps.classroom.monitor import classroom, production
from apps.classroom.room import Room
from apps.classroom.simulator import Lesson, Moods, Production, serve
from tests.support import eventually
from tests.support.operate import create_token
from tests.support.server import TestServer
from tests.support.watched import watching
from tests.support.web import ROOT, WebServer
from tidemill.core.clock import VirtualClock
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.monitors.roster import show_entity

STUDENTS, LASTED, STEP = 16, 2400.0, 60.0
TRIGGERS = {"wheel-spin", "inactive", "big-rewrite"}


class Given(msgspec.Struct):
    """A lesson that has been followed, and a server that shows it."""

    database_url: str
    server: WebServer
    since: float
    until: float
    names: list[str]
    logged: list[dict[str, Any]]
    tokens: dict[str, str]

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=f"{self.server.url}/pages/classroom/api", headers=headers, timeout=150)

    def get(self, path: str, **parameters: Any) -> Any:
        with self.client() as client:
            return client.get(path, params=parameters).raise_for_status().json()

    def post(self, path: str, body: Any, token: str | None = None) -> httpx.Response:
        with self.client(token) as client:
            return client.post(path, json=body)

    @property
    def span(self) -> dict[str, float]:
        return {"since": self.since, "until": self.until}


async def follow_a_lesson(url: str, start: float) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The last forty minutes, followed as they would have been."""
    clock = VirtualClock(start)
    lesson = Lesson(STUDENTS, start=start, seed=7, now=clock.now)
    server = serve(Production(lesson, Moods(errors=0.05, repeats=0.1, token_uses=20)))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    watch = classroom(production(f"http://127.0.0.1:{server.server_address[1]}", "daemon", "x"), roster="open")
    try:
        async with Database(DatabaseSettings(url=url), label="test") as database:
            async with watching(database, watch, clock) as watcher:
                while clock.now() < start + LASTED:
                    clock.advance(STEP)
                    await watcher.one_tick()
                await watcher.one_tick()
                await watcher.reader.close()
            tokens = {role: (await _token(database, role)) for role in ("viewer", "operator")}
    finally:
        server.shutdown()
        server.server_close()
    return lesson.upto_now(), tokens


async def _token(database: Database, role: Any) -> str:
    return (await create_token(database, role, role, by="test"))[0]


@pytest.fixture(scope="module")
def lesson(server: TestServer) -> Iterator[Given]:
    url, start = server.create(), time.time() - LASTED - 2 * STEP
    logged, tokens = asyncio.run(follow_a_lesson(url, start))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLASSROOM_KEY", "a key")
        patch.setenv("CLASSROOM_STREAMS", "3")
        web = WebServer(url, app=ROOT / "apps" / "classroom" / "app.py")
    try:
        asyncio.run(web.wait_ready())
        names = sorted({entry["studentID"] for entry in logged})
        yield Given(url, web, start, time.time(), names, logged, tokens)
    finally:
        web.close()
        server.drop(url)


# -- the teacher ----------------------------------------------------------------------------------


def test_the_board_has_everybody_and_ranks_whom_to_go_to(lesson: Given) -> None:
    board = lesson.get("/board")
    assert [card["student"] for card in board["cards"]] == lesson.names
    assert all(card["sparkline"] and card["episode"] and card["runs"] for card in board["cards"])
    visits = board["visits"]
    assert visits
    assert [visit["rank"] for visit in visits] == sorted((visit["rank"] for visit in visits), reverse=True)
    assert all(visit["why"].endswith(".") and visit["tried"].endswith(".") and visit["alerts"] for visit in visits)
    assert all(visit["since"] <= board["now"] for visit in visits)
    stuck = {card["student"]: card for card in board["cards"] if card["state"] == "stuck"}
    assert stuck
    assert all(card["stuck_since"] is not None for card in stuck.values())
    for group in board["groups"]:
        assert len(group["students"]) > 1
        assert {stuck[name]["focus"] for name in group["students"]} == {stuck[group["students"][0]]["focus"]}
    now = board["now"]
    shown = {
        alert["id"]
        for alert in lesson.get("/alerts", limit=1000)["items"]
        if not alert["resolved_at"]
        or alert["resolved_at"] > now - 120
        or (alert["kind"] == "momentary" and not alert["acked_at"] and alert["started_at"] > now - 600)
    }
    assert {alert["id"] for alert in board["feed"]} == shown
    assert board["health"] == "healthy"


def test_of_two_who_go_at_once_one_is_told_that_the_other_is_going(lesson: Given) -> None:
    student = lesson.get("/board")["visits"][0]["student"]
    with ThreadPoolExecutor(2) as both:
        answers = list(
            both.map(lambda who: lesson.post("/claim", {"student": student, "who": who}), ["Ms Lee", "Mr Day"])
        )
    won, lost = sorted(answers, key=lambda answer: answer.status_code)
    assert (won.status_code, lost.status_code) == (200, 409)
    who = won.json()["claim"]["who"]
    assert f"{who} is on the way to {student} already" in lost.json()["detail"]
    board = lesson.get("/board")
    assert board["visits"][-1]["claim"]["who"] == who  # whoever is being visited comes last
    with httpx.Client(base_url=lesson.server.url, timeout=150) as client:
        entry = client.get("/api/v1/audit", params={"limit": 1}).json()["items"][0]
    assert (entry["who"], entry["after"]["said"]) == ("local", who)  # nobody writes their own name into the audit
    assert (entry["before"]["claimed"], entry["after"]["claimed"]["who"]) == (None, who)
    assert lesson.post("/claim", {"student": student, "who": who}).status_code == 200
    assert lesson.post("/give-back", {"student": student}).json() == {"student": student, "claim": None}
    assert all(card["claim"] is None for card in lesson.get("/board")["cards"])


def test_an_alert_is_acknowledged_with_a_note_and_leaves_the_list(lesson: Given) -> None:
    visit = lesson.get("/board")["visits"][0]
    body = {"ids": visit["alerts"], "note": "needed a hint #right", "who": "Ms Lee"}
    assert lesson.post("/ack", body).json() == {"ids": sorted(visit["alerts"])}
    assert lesson.post("/ack", body).json() == {"ids": []}  # nobody is first twice
    board = lesson.get("/board")
    assert visit["student"] not in [each["student"] for each in board["visits"]]
    seen = [alert for alert in lesson.get("/alerts", limit=1000)["items"] if alert["id"] in visit["alerts"]]
    assert {alert["note"] for alert in seen} == {"needed a hint #right"}
    assert {alert["acked_by"] for alert in seen} == {"Ms Lee, local"}
    with httpx.Client(base_url=lesson.server.url, timeout=150) as client:
        (entry,) = client.get("/api/v1/audit", params={"action": "alert.ack"}).json()["items"]
    assert (entry["who"], entry["after"]["said"], entry["after"]["ids"]) == ("local", "Ms Lee", sorted(visit["alerts"]))
    assert lesson.post("/ack", {"ids": [10**9]}).status_code == 404
    assert lesson.post("/ack", {"ids": []}).status_code == 422


def test_notes_make_a_precision_per_trigger(lesson: Given) -> None:
    rewrites = lesson.get("/alerts", trigger="big-rewrite")["items"]
    assert {alert["trigger"] for alert in rewrites} == {"big-rewrite"}
    for alert, right in zip(rewrites[:3], (True, True, False), strict=True):
        assert lesson.post(f"/alerts/{alert['id']}/note", {"right": right}).status_code == 200
    kept = lesson.post(f"/alerts/{rewrites[0]['id']}/note", {"note": "began anew", "right": True}).json()
    assert kept["note"] == "began anew #right"
    assert lesson.post(f"/alerts/{rewrites[0]['id']}/note", {"right": False}).json()["note"] == "began anew #wrong"
    (told,) = [each for each in lesson.get("/precision", **lesson.span) if each["trigger"] == "big-rewrite"]
    assert (told["alerts"], told["right"], told["wrong"]) == (len(rewrites), 1, 2)
    assert 0 < told["low"] < told["share"] < told["high"] < 1
    assert lesson.post(f"/alerts/{10**9}/note", {"note": "x"}).status_code == 404
    assert lesson.post(f"/alerts/{rewrites[0]['id']}/note", {"note": "x" * 5000}).status_code == 422


def test_a_students_story_has_readable_programs_and_what_changed_in_them(lesson: Given) -> None:
    name = max(lesson.get("/board")["cards"], key=lambda card: card["runs"])["student"]
    story = lesson.get("/student", name=name)
    logged = [entry for entry in lesson.logged if entry["studentID"] == name]
    assert sum(story["counts"].values()) == len(logged)
    assert [run["id"] for run in story["runs"]] == [
        str(entry["id"]) for entry in logged if entry["eventType"] == "runProject"
    ][-100:]
    assert all(run["program"][0] == [0, "when started", True] for run in story["runs"])
    changed = [run for run in story["runs"] if run["change"]]
    assert changed
    signs = {line["sign"] for run in changed for line in run["diff"]}
    assert {"+", "-", "~", " "} >= signs
    assert signs & {"+", "-"}
    for before, after in zip(story["runs"], story["runs"][1:], strict=False):
        if after["diff"]:
            assert [line["text"] for line in after["diff"] if line["sign"] != "-"] == [
                text for _, text, _ in after["program"]
            ]
            assert [line.get("was", line["text"]) for line in after["diff"] if line["sign"] != "+"] == [
                text for _, text, _ in before["program"]
            ]
    assert {run["state"] for run in changed} <= {"iterator", "explorer", "stuck"}
    assert "[Active]" in story["prompt"]
    assert story["episodes"]
    with lesson.client() as client:
        assert client.get("/student", params={"name": "nobody"}).status_code == 404
        assert client.get("/student", params={"name": name, "since": 9, "until": 5}).status_code == 422


def test_who_is_not_in_the_room_is_not_on_the_list(lesson: Given) -> None:
    student = lesson.get("/board")["visits"][-1]["student"]
    lesson.post("/presence", {"student": student, "present": False}).raise_for_status()
    board = lesson.get("/board")
    assert student not in [visit["student"] for visit in board["visits"]]
    assert {card["student"] for card in board["cards"] if not card["present"]} == {student}
    lesson.post("/presence", {"student": student, "present": True}).raise_for_status()
    assert student in [visit["student"] for visit in lesson.get("/board")["visits"]]


def test_who_may_only_read_changes_nothing(lesson: Given) -> None:
    read, operate = lesson.tokens["viewer"], lesson.tokens["operator"]
    body = {"student": lesson.names[0], "who": "A visitor"}
    assert lesson.post("/claim", body, read).status_code == 403
    assert lesson.post("/triggers/inactive", {"on": False}, read).status_code == 403
    claimed = lesson.post("/claim", {"student": lesson.names[0]}, operate)
    assert claimed.json()["claim"]["who"].startswith("operator (token ")  # a token's own name, where none was said
    lesson.post("/give-back", body, operate).raise_for_status()
    with lesson.client(read) as client:
        assert client.get("/board").status_code == 200
    with httpx.Client(base_url=lesson.server.url, timeout=150) as browser:  # logged in with a cookie, as the page is
        session = browser.post("/api/v1/session", json={"token": operate}).json()
        going = {"student": lesson.names[0], "who": "Ms Lee"}
        assert browser.post("/pages/classroom/api/claim", json=going).status_code == 403
        headers = {"X-CSRF-Token": session["csrf"]}
        assert browser.post("/pages/classroom/api/claim", json=going, headers=headers).status_code == 200
        browser.post("/pages/classroom/api/give-back", json=going, headers=headers).raise_for_status()
    stranger = httpx.get(f"{lesson.server.url}/pages/classroom/", timeout=150)
    assert stranger.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in stranger.headers["content-security-policy"]


def test_everybody_who_watches_hears_of_a_claim(lesson: Given) -> None:
    student = lesson.names[3]
    with lesson.client() as client, client.stream("GET", "/live") as first, client.stream("GET", "/live") as second:
        heard = [stream.iter_lines() for stream in (first, second)]
        assert [next(lines) for lines in heard] == ["event: news"] * 2
        lesson.post("/claim", {"student": student, "who": "Ms Lee"}).raise_for_status()
        for lines in heard:
            assert any(line == "event: news" for line in lines)
    card = next(card for card in lesson.get("/board")["cards"] if card["student"] == student)
    assert card["claim"]["who"] == "Ms Lee"
    lesson.post("/give-back", {"student": student}).raise_for_status()


async def test_when_too_many_watch_one_more_is_told_to_come_back_later(lesson: Given) -> None:
    def ask(client: httpx.Client) -> httpx.Response:
        with client.stream("GET", "/live") as answer:
            if answer.is_error:
                answer.read()
            return answer

    with lesson.client() as client:
        with ExitStack() as watchers:
            heard: list[Iterator[str]] = []

            def all_watch() -> bool:
                """Whoever has just left may still be counted."""
                answer = watchers.enter_context(client.stream("GET", "/live"))
                if answer.is_success:
                    heard.append(answer.iter_lines())
                return len(heard) == 3

            await eventually(all_watch, what="three watch")
            assert [next(lines) for lines in heard] == ["event: news"] * 3
            refused = ask(client)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            assert "3 pages of this class are open" in refused.json()["detail"]
            assert lesson.get("/board")["cards"]
        await eventually(lambda: ask(client).status_code == 200, what="there is room again")


# -- the researcher -------------------------------------------------------------------------------


def test_a_type_of_alert_is_switched_off_and_on_again(lesson: Given) -> None:
    assert lesson.post("/triggers/wheel-spin", {"on": False}).json() == {"trigger": "wheel-spin", "on": False}
    board = lesson.get("/board")
    assert board["off"] == ["wheel-spin"]
    assert not [visit for visit in board["visits"] if visit["trigger"] == "wheel-spin"]
    assert lesson.post("/triggers/wheel-spin", {"on": True}).json()["on"] is True
    assert lesson.get("/board")["off"] == []
    assert lesson.post("/triggers/none", {"on": False}).status_code == 404
    assert [each["name"] for each in lesson.get("/about")["triggers"]] == ["wheel-spin", "inactive", "big-rewrite"]


def test_a_threshold_says_how_often_it_would_have_fired_and_profiles_differ(lesson: Given) -> None:
    swept = lesson.get("/sweep", **lesson.span)
    assert swept["events"] == len(lesson.logged)
    assert swept["students"] == STUDENTS
    counts = dict(swept["big_rewrite"])
    told = [alert for alert in lesson.get("/alerts", limit=1000)["items"] if alert["trigger"] == "big-rewrite"]
    assert counts[0.5] == len(told)
    assert counts[0.1] > counts[0.5] > counts[1.0]
    compared = lesson.get("/profiles", **lesson.span)
    document, corrected, glass = (version["counts"] for version in compared["versions"])
    assert document["big-rewrite"] == len(told)
    assert corrected["wheel-spin"] < document["wheel-spin"]
    assert glass != corrected
    first = compared["compared"][0]
    assert first["both"] + first["only_first"] == sum(document.values())
    assert first["both"] + first["only_second"] == sum(corrected.values())
    assert not {each["student"] for each in first["examples_first"]} & set(lesson.names)
    with lesson.client() as client:
        assert client.get("/sweep", params={"since": 5, "until": 4}).status_code == 422
        assert client.get("/sweep", params={"since": 0, "until": 1e9}).status_code == 422


def test_a_day_is_there_to_be_played_once_more(lesson: Given) -> None:
    day = lesson.get("/day", **lesson.span)
    runs, alerts = day["runs"], day["alerts"]
    assert len(day["students"]) == STUDENTS
    assert not set(day["students"]) & set(lesson.names)
    assert [run[0] for run in runs] == sorted(run[0] for run in runs)
    assert {alert[2] for alert in alerts} == TRIGGERS
    assert len(alerts) == len(lesson.get("/alerts", limit=1000)["items"])
    assert {day["states"][run[3]] for run in runs} == {"iterator", "explorer", "stuck"}


def rows_in(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_the_export_is_progsnap2_and_names_nobody(lesson: Given) -> None:
    with lesson.client() as client:
        answer = client.get("/export/progsnap2.zip", params=lesson.span).raise_for_status()
    assert "attachment" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    assert set(files) == {"README.md", "DatasetMetadata.csv", "MainTable.csv", "CodeStates/CodeStates.csv"}
    about = {row["Property"]: row["Value"] for row in rows_in(files["DatasetMetadata.csv"])}
    assert (about["Version"], about["CodeStateRepresentation"]) == ("1.0", "Table")
    assert (about["IsEventOrderingConsistent"], about["EventOrderScope"]) == ("true", "Global")
    main, codes = rows_in(files["MainTable.csv"]), rows_in(files["CodeStates/CodeStates.csv"])
    assert len(main) == len(lesson.logged)
    assert {row["EventID"] for row in main} == {str(entry["id"]) for entry in lesson.logged}
    assert [int(row["Order"]) for row in main] == list(range(len(main)))
    assert [row["ServerTimestamp"] for row in main] == sorted(row["ServerTimestamp"] for row in main)
    assert all(row["EventType"] and row["SubjectID"] and row["ToolInstances"] for row in main)
    assert all(datetime.strptime(row["ServerTimestamp"], "%Y-%m-%dT%H:%M:%S.%f%z") for row in main)
    programs = {row["CodeStateID"]: row["Code"] for row in codes}
    ran = [row for row in main if row["EventType"] == "Run.Program"]
    assert len(ran) == sum(entry["eventType"] == "runProject" for entry in lesson.logged)
    assert {row["CodeStateID"] for row in ran} == set(programs)
    assert all(code.startswith("<xml") for code in programs.values())
    ends = [row for row in main if row["EventType"] == "X-Run.End"]
    assert ends
    assert {row["ParentEventID"] for row in ends} <= {row["EventID"] for row in ran}
    assert all(row["ExecutionID"] == row["ParentEventID"] for row in ends)
    assert {row["CodeStateID"] for row in main if row["EventType"] in ("File.Edit", "Project.Open")} == {""}
    edits = {row["X-SourceType"]: row["EditType"] for row in main if row["EventType"] == "File.Edit"}
    assert edits == {
        "blockCreated": "Insert", "blockDeleted": "Delete", "blockMoved": "Move", "blockChanged": "Replace"
    }  # fmt: skip
    kinds = {row["EventType"] for row in main}
    assert all(kind.startswith("X-") for kind in kinds - {"Run.Program", "File.Edit", "Project.Open"})
    assert len({row["SubjectID"] for row in main}) == STUDENTS
    everything = "".join(files.values())
    assert not [name for name in [*lesson.names, "5B"] if name in everything]


def test_the_tables_have_pseudonyms_that_agree_and_alerts_with_what_was_said_of_them(lesson: Given) -> None:
    named = lesson.get("/alerts", limit=1)["items"][0]
    lesson.post(f"/alerts/{named['id']}/note", {"note": f"{named['student']} was helped by {lesson.names[0]}"})
    lesson.post(f"/alerts/{named['id']}/note", {"right": True})
    with lesson.client() as client:
        tables = {
            name: client.get(f"/export/{name}.csv", params=lesson.span).raise_for_status().text
            for name in ("events", "runs", "alerts")
        }
        assert client.get("/export/all.csv", params=lesson.span).status_code == 404
    events, runs, alerts = (rows_in(tables[name]) for name in ("events", "runs", "alerts"))
    assert [row["event"] for row in events] == [str(entry["id"]) for entry in lesson.logged]
    assert {row["student"] for row in runs} == {row["student"] for row in events}
    assert {row["student"] for row in alerts} <= {row["student"] for row in events}
    assert {row["state"] for row in runs} == {"iterator", "explorer", "stuck"}
    assert all(0 <= float(row["change"]) <= 1 for row in runs)
    (row,) = [row for row in alerts if row["alert"] == str(named["id"])]
    assert row["label"] == "right"
    assert row["student"] in row["note"]
    assert not [name for name in lesson.names for text in tables.values() if name in text]


# -- on the database alone ------------------------------------------------------------------------


async def test_one_look_a_second_serves_all_who_watch_and_none_is_had_while_nobody_does(database: Database) -> None:
    room, closed = Room("classroom", look_every=0.05), [False]

    async def watch() -> int:
        return len([each async for each in room.watch(database, lambda: closed[0])])

    watching_now = [asyncio.create_task(watch()) for _ in range(20)]
    await eventually(lambda: room.watching == 20)
    before = room.looks
    await eventually(lambda: room.looks >= before + 3)
    assert room.looks < before + 20  # twenty watchers would have had sixty
    closed[0] = True
    assert all(count >= 1 for count in await asyncio.gather(*watching_now))
    assert room.watching == 0
    assert room._looking is not None
    await eventually(lambda: room._looking is not None and room._looking.done())


async def test_a_claim_can_be_taken_over_once_it_has_lapsed(lesson: Given) -> None:
    student = lesson.names[1]
    async with Database(DatabaseSettings(url=lesson.database_url), label="test") as database:
        now = time.time()
        await claim(database, student, "Ms Lee", by="test", now=now - 700)
        await claim(database, student, "Mr Day", by="test", now=now)
        with pytest.raises(TakenError, match="Mr Day is on the way"):
            await claim(database, student, "Ms Lee", by="test", now=now + 1)
        labels = read_labels((await show_entity(database, "classroom", student))["labels"])
        standing = claim_in(labels, now + 1)
        assert standing is not None
        assert standing.who == "Mr Day"
    lesson.post("/give-back", {"student": student}).raise_for_status()
