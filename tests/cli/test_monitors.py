"""The command line of monitors, as a user has it: `tidemill up` follows them, and people act on what they tell."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Process, asked_until, make_folder, run

APP = """
from tidemill import App
from tidemill.monitors import Monitor, absent, momentary, sustained
from tidemill.sources import JsonlSource

app = App("workshop")


class Machine:
    def on_event(self, state, event):
        state.hot_since = (state.hot_since or event.at) if event["celsius"] >= 80 else None
        if event["celsius"] > 100:
            state.peaks = [*(state.peaks or []), {"id": event.id, "at": event.at}]


app.monitor(Monitor(
    "machines", source=JsonlSource("readings.jsonl", of="machine"), entity=lambda e: e["machine"], fold=Machine,
    idle=0.05, idle_max=0.1,
    triggers=[
        sustained("hot", when=lambda s, now: s.hot_since, since=lambda s: s.hot_since, describe="80 degrees or more"),
        momentary("peak", of=lambda s: s.peaks or []),
        sustained("broken", when=lambda s, now: s.no["thing"]),
    ],
))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Path]:
    made = make_folder(tmp_path_factory.mktemp("monitors"), APP, module_database_url)
    (made / "readings.jsonl").write_text("")
    up = Process(made, "up", "app.py", "--trust-local")
    try:
        up.line("monitors started")
        (made / "url").write_text(up.line("serving http").split()[-1])
        yield made
    finally:
        up.close()


def read(folder: Path, machine: str, celsius: float) -> str:
    id = f"{machine}-{time.time_ns()}"
    with (folder / "readings.jsonl").open("a") as file:
        file.write(json.dumps({"id": id, "at": time.time(), "machine": machine, "celsius": celsius}) + "\n")
    return id


def told(folder: Path, *arguments: str) -> Any:
    done = run(folder, "monitor", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def explained(folder: Path, *arguments: str) -> Any:
    done = run(folder, "explain", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["alert"]


def without_ages(page: str) -> str:
    """What is said, less how long ago it was when it was said."""
    return re.sub(r"\((now|[^()]* ago)\)", "(then)", page)


def alerts(folder: Path, count: int, *more: str) -> list[dict[str, Any]]:
    return asked_until(lambda: told(folder, "alerts", "--all", *more), lambda rows: len(rows) >= count)


def test_a_trigger_that_opened_nothing_is_explained_by_its_name_and_entity(folder: Path) -> None:
    read(folder, "cool", 20)
    page = asked_until(
        lambda: run(folder, "explain", "--why-not", "hot", "cool", "--json"), lambda done: done.returncode == 0
    )
    found = json.loads(page.stdout)
    assert (found["kind"], found["id"], found["state"]) == ("trigger", "machines/hot/cool", "quiet")
    text = run(folder, "explain", "--why-not", "hot", "cool").stdout
    assert "Its condition was false at that check" in text
    refused = run(folder, "explain")
    assert "name what to explain: an ID, or --why-not TRIGGER ENTITY" in refused.stderr


def test_alerts_are_listed_explained_acknowledged_and_noted(folder: Path) -> None:
    id = read(folder, "oven", 120)
    rows = alerts(folder, 2, "--entity", "oven")
    assert {row["trigger"] for row in rows} == {"hot", "peak"}
    (peak,) = [row["id"] for row in rows if row["trigger"] == "peak"]
    page = run(folder, "explain", f"a{peak}").stdout
    assert ("(info): it occurred." in page, "Condition:" in page) == (True, False), page
    hot = next(row for row in rows if row["trigger"] == "hot")
    page = explained(folder, f"a{hot['id']}")
    assert page["record"]["rule"]["says"] == "80 degrees or more"
    assert page["record"]["events"][0]["id"] == id
    assert "80 degrees or more" in run(folder, "explain", f"a{hot['id']}").stdout
    assert "is acknowledged" in run(folder, "monitor", "ack", str(hot["id"]), "--note", "on my way").stdout
    assert "was acknowledged before" in run(folder, "monitor", "ack", str(hot["id"])).stdout
    assert run(folder, "monitor", "note", str(hot["id"]), "fixed", "--owner", "ann").returncode == 0
    page = explained(folder, f"a{hot['id']}")
    assert (page["alert"]["note"], page["alert"]["owner"]) == ("fixed", "ann")
    assert [each["action"] for each in page["history"]] == ["opened", "acknowledged", "note"]


def test_alerts_are_told_and_acknowledged_through_a_server_as_well(folder: Path) -> None:
    read(folder, "forge", 120)
    rows = alerts(folder, 2, "--entity", "forge")
    server = ("--server", (folder / "url").read_text())
    assert told(folder, "alerts", "--all", "--entity", "forge", *server) == rows
    id = str(rows[0]["id"])
    assert "is acknowledged" in run(folder, "monitor", "ack", id, "--note", "seen", *server).stdout
    assert "was acknowledged before" in run(folder, "monitor", "ack", id, *server).stdout
    assert run(folder, "monitor", "note", id, "cooled", "--owner", "ann", *server).returncode == 0
    page = explained(folder, f"a{id}")
    alert = page["alert"]
    assert (alert["note"], alert["owner"], alert["acked_by"]) == ("cooled", "ann", "local")
    assert explained(folder, f"a{id}", *server) == page
    here, there = (run(folder, "explain", f"a{id}", *more).stdout for more in ((), server))
    assert without_ages(here) == without_ages(there)


def test_the_status_shows_health_stages_and_what_went_wrong(folder: Path) -> None:
    read(folder, "lamp", 20)
    stages = {"reset", "roster", "ingest", "evaluate", "triggers"}

    def is_notified(row: dict[str, Any]) -> bool:
        return bool(row["problems"]) and row["status"] is not None and stages <= set(row["status"]["stages"])

    row = asked_until(lambda: told(folder, "status")[0], is_notified)
    assert row["status"]["health"] == "healthy"
    assert row["problems"][0]["place"] == "trigger broken"
    page = run(folder, "monitor", "status").stdout
    assert "healthy" in page
    assert "trigger broken for" in page


def test_the_roster_is_changed_and_the_log_shown(folder: Path) -> None:
    assert "press is followed now" in run(folder, "monitor", "roster", "add", "press").stdout
    assert "press is followed already" in run(folder, "monitor", "roster", "add", "press").stdout
    id = read(folder, "press", 50)
    asked_until(lambda: run(folder, "monitor", "tail", "--entity", "press").stdout, lambda shown: id in shown)
    assert run(folder, "monitor", "roster", "label", "press", "present=false").returncode == 0
    row = next(each for each in told(folder, "roster", "list") if each["entity"] == "press")
    assert row["labels"] == {"present": False}
    assert "is no longer followed" in run(folder, "monitor", "roster", "remove", "press").stdout
    assert "press" not in [each["entity"] for each in told(folder, "roster", "list")]


def test_a_silence_a_switch_a_pause_and_a_reset_are_one_command_each(folder: Path) -> None:
    assert "silence" in run(folder, "monitor", "silence", "trigger=hot", "entity=oven*", "--lasts", "10m").stdout
    assert "trigger=hot" in run(folder, "monitor", "silence").stdout
    misspelt = run(folder, "monitor", "silence", "trigger=ho")
    assert (misspelt.returncode, "did you mean 'hot'?" in misspelt.stderr) == (1, True), misspelt.stderr
    unknown = run(folder, "monitor", "silence", "entity=oven*", "--monitor", "machine")
    assert (unknown.returncode, "did you mean 'machines'?" in unknown.stderr) == (1, True), unknown.stderr
    assert run(folder, "monitor", "silence", "--end", "1").returncode == 0
    assert run(folder, "monitor", "trigger", "hot", "off").returncode == 0
    assert told(folder, "status")[0]["off"] == ["hot"]
    assert run(folder, "monitor", "trigger", "hot", "on").returncode == 0
    assert run(folder, "monitor", "pause").returncode == 0
    assert told(folder, "status")[0]["paused"] is True
    assert run(folder, "monitor", "resume").returncode == 0
    assert "will be built again" in run(folder, "monitor", "reset").stdout
    assert "will be read" in run(folder, "monitor", "backfill", "--past", "1h").stdout


def test_a_monitor_is_looked_at_and_told_what_to_do_through_a_server(folder: Path, tmp_path: Path) -> None:
    server = ("--server", (folder / "url").read_text())

    def there(*arguments: str) -> str:
        done = run(tmp_path, "monitor", *arguments, *server)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert there("roster", "add", "lathe", "--no-backfill") == "lathe is followed now\n"
    assert there("roster", "label", "lathe", "present=false", "room=12") == "lathe: present=false, room=12\n"
    rows = told(tmp_path, "roster", "list", "--all", *server)
    assert next(each["labels"] for each in rows if each["entity"] == "lathe") == {"present": False, "room": "12"}
    there("trigger", "hot", "off")
    assert there("pause") == "monitor machines is paused\n"
    stored, served = told(folder, "status")[0], told(tmp_path, "status", *server)[0]
    assert (stored["paused"], stored["off"], set(stored)) == (True, ["hot"], set(served))
    steady = ("name", "version", "events", "paused", "off", "entities")
    assert {name: stored[name] for name in steady} == {name: served[name] for name in steady}
    listed = ("roster", "list", "--all")
    asked_until(  # A tick may be under way still.
        lambda: (told(folder, *listed), told(tmp_path, *listed, *server)), lambda both: both[0] == both[1]
    )
    there("resume")
    there("trigger", "hot", "on")
    assert there("reset", "lathe") == "the states of 1 entity will be built again\n"
    assert there("backfill", "lathe", "--past", "1h") == "the past of 1 entity will be read\n"
    assert there("roster", "remove", "lathe", "nobody").splitlines() == [
        "lathe is no longer followed", "nobody was not followed",
    ]  # fmt: skip
    assert there("status", "machines").startswith("machines  ")

    number = there("silence", "trigger=hot", "entity=lathe*", "--lasts", "10m").split()[1]
    listed = [run(where, "monitor", "silence", *more).stdout for where, more in ((folder, ()), (tmp_path, server))]
    assert f"{number}  machines  trigger=hot entity=lathe*  until " in listed[0]
    assert listed[0] == listed[1]
    assert there("silence", "--end", number) == f"silence {number} has ended\n"
    assert "no silence" in run(tmp_path, "monitor", "silence", "--end", number, *server).stderr
    id = read(folder, "lamp", 20)
    asked_until(lambda: there("tail", "--entity", "lamp"), lambda shown: id in shown)
    newest = ("tail", "--entity", "lamp", "--lines", "3")
    assert there(*newest) == run(folder, "monitor", *newest).stdout
    here, away = (told(folder, "backtest", *more, "--last", "1h") for more in (("app.py",), server))
    for each in (here, away):  # The second looks at a later hour, in which a broken trigger was tried once more.
        each |= {"since": 0, "until": 0, "problems": sorted(set(each["problems"]))}
    assert here == away
    assert "the server has the application" in run(folder, "monitor", "backtest", "app.py", *server).stderr


def test_a_tail_that_follows_prints_events_as_they_arrive(folder: Path) -> None:
    for more in ((), ("--server", (folder / "url").read_text())):
        first = read(folder, "mill", 20)
        process = Process(folder, "monitor", "tail", "--entity", "mill", "--follow", *more)
        try:
            process.line(first)
            process.line(read(folder, "mill", 21))
        finally:
            process.close()


def test_a_backfill_is_waited_for(folder: Path) -> None:
    assert run(folder, "monitor", "roster", "add", "saw").returncode == 0
    for more in ((), ("--server", (folder / "url").read_text())):
        done = run(folder, "monitor", "backfill", "saw", "--past", "1h", "--wait", *more)
        assert done.stdout == "the past of 1 entity will be read\nit has been read\n", done.stderr
        rows = told(folder, "roster", "list", *more)
        assert next(row["backfill"] for row in rows if row["entity"] == "saw") is None


def test_all_alerts_that_match_are_acknowledged_once_the_user_agrees(folder: Path) -> None:
    for machine, more in (("anvil", ()), ("bellows", ("--server", (folder / "url").read_text()))):
        read(folder, machine, 120)
        assert len(alerts(folder, 2, "--entity", machine)) == 2
        asked = run(folder, "monitor", "ack", "--entity", machine, *more)
        assert (asked.returncode, asked.stderr) == (1, "error: this would acknowledge 2 alerts: add --yes to do it\n")
        peak = run(folder, "monitor", "ack", "--entity", machine, "--trigger", "peak", "--yes", *more)
        assert peak.stdout == "1 alert acknowledged now\n"
        rest = run(folder, "monitor", "ack", "--entity", machine, "--note", "seen", "--yes", *more)
        assert rest.stdout == "1 alert acknowledged now\n"
        assert run(folder, "monitor", "ack", "--entity", machine, *more).stdout == "no alert to acknowledge matches\n"
        notes = {row["trigger"]: row["note"] for row in alerts(folder, 2, "--entity", machine)}
        assert notes == {"hot": "seen", "peak": None}
    assert "either ids, or --monitor" in run(folder, "monitor", "ack", "1", "--entity", "oven").stderr


def test_a_backtest_counts_and_draws(folder: Path) -> None:
    read(folder, "kiln", 150)
    alerts(folder, 2, "--entity", "kiln")
    found = told(folder, "backtest", "app.py", "--last", "1h", "--svg", "picture.svg")
    assert found["counts"]["peak"] >= 1
    assert (folder / "picture.svg").read_text().startswith("<svg")
    (folder / "next.py").write_text(APP.replace(">= 80", ">= 200"))
    found = told(folder, "backtest", "app.py", "--last", "1h", "--against", "next.py", "--trigger", "hot")
    assert found["against"] == {}
    assert found["differs"]["only_first"] >= 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("ack", "99999"), "no alert 99999"),
        (("roster", "add"), "give at least one"),
        (("silence", "colour=red"), "trigger, entity or severity"),
        (("silence", "hot"), "NAME=VALUE"),
        (("trigger", "hot", "maybe"), 'Choose from: "on", "off"'),
        (("status", "--nonsense"), "--nonsense"),
        (("roster", "list", "--monitor", "nobody"), "no monitor 'nobody'"),
        (("backtest", "app.py", "--trigger", "cold"), "no trigger 'cold'"),
        (("backtest", "app.py", "--since", "soon"), "not a date or time"),
    ],
)
def test_a_mistake_is_answered_with_what_to_do(folder: Path, arguments: tuple[str, ...], why: str) -> None:
    done = run(folder, "monitor", *arguments)
    assert done.returncode != 0
    assert why in done.stderr
    assert len(done.stderr.splitlines()) == 1
