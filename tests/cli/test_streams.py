"""`tidemill stream` as a user has it: run, look, change, replay, stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Process, asked_until, listing, make_folder, ok, run

APP = """
from tidemill import App
from tidemill.streams import Plan, Stream, task
from tidemill.sources import LogSource

app = App("shop")


class Check(Plan, eligibility="check"):
    @task
    async def check(self, ctx):
        if ctx.value["n"] < 0:
            raise ValueError("a negative number")


app.stream(Stream("orders", plans=[Check], engines=1, max_attempts=1,
    sources=[LogSource("orders", eligibilities={"check"}), LogSource("late", eligibilities={"check"})]))
"""

CONFIG = """
streams:
  configured:
    plans: [app:Check]
    sources: [{type: log, topic: things, eligibilities: [check]}]
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Iterator[Process]:
    folder = make_folder(tmp_path_factory.mktemp("streams"), APP, module_database_url)
    (folder / "streams.yaml").write_text(CONFIG)
    process = Process(folder, "up", "app.py", "--trust-local")
    try:
        process.line("stream is running")
        yield process
    finally:
        process.close()


def status(folder: Path, fits: Any) -> dict[str, Any]:
    """The status of the stream, once it is as it should be."""

    def dispatchers() -> list[dict[str, Any]]:  # Its dispatcher is listed soon after the log says that it runs.
        streams = [each for each in listing(folder, "stream", "status") if each["name"] == "orders"]
        return streams[0]["dispatchers"] if streams else []

    return asked_until(dispatchers, lambda found: found and fits(found[0]))[0]


def settled(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What `status` tells, without what changes from one second to the next."""
    for each in (dispatcher for line in found for dispatcher in line["dispatchers"]):
        for part in (each, *each["sources"]):
            for name in ("silent", "rate", "lag"):
                part.pop(name, None)
    return found


def counted(it: dict[str, Any]) -> tuple[int, int, int]:
    """What the source has done, and what the plan has done and failed at: other tests may have been before."""
    plan = it["plans"].get("Check", {"done": 0, "failed": 0})
    return it["sources"][0]["done"], plan["done"], plan["failed"]


def test_messages_are_published_run_and_counted(up: Process) -> None:
    before = counted(status(up.folder, lambda it: True))
    assert "3 messages are in orders" in ok(up.folder, "stream", "publish", "orders", *['{"n": 1}'] * 3)
    status(up.folder, lambda it: counted(it) == (before[0] + 3, before[1] + 3, before[2]))
    shown = ok(up.folder, "stream", "status")
    assert "orders" in shown
    assert "Check" in shown


def test_a_dead_letter_is_listed_shown_and_replayed(up: Process) -> None:
    dead = status(up.folder, lambda it: True)["sources"][0]["dead"]
    ok(up.folder, "stream", "publish", "orders", '{"n": -5}')
    status(up.folder, lambda it: it["sources"][0]["dead"] == dead + 1)
    assert "a negative number" in ok(up.folder, "stream", "dead-letters", "orders")
    letter, *others = listing(up.folder, "stream", "dead-letters")
    assert (letter["payload"], letter["attempts"], letter["plans"]) == ('{"n": -5}', 1, ["Check"])
    page = ok(up.folder, "stream", "dead-letters", "--id", str(letter["id"]))
    assert "Check: ValueError: a negative number" in page
    assert '{"n": -5}' in page
    explained = ok(up.folder, "explain", f"orders/orders:{letter['place']}", "--app", "app.py")
    assert "attempt 1, plan Check" in explained
    assert "waited before: " in explained
    assert "0 dead letters" in ok(up.folder, "stream", "replay", "orders", "--error", "something else")
    tried = 1 + len(others)
    assert f"{tried} dead letter{' is' if tried == 1 else 's are'} tried again" in ok(
        up.folder, "stream", "replay", "orders", "--plan", "Check"
    )
    status(up.folder, lambda it: it["sources"][0]["dead"] == dead + 1 + tried)
    asked = run(up.folder, "stream", "replay")
    assert asked.returncode == 1
    assert "add --yes" in asked.stderr


def test_weights_limits_and_switches_are_changed_while_it_runs(up: Process) -> None:
    ok(up.folder, "stream", "set-weight", "orders", "late", "4")
    ok(up.folder, "stream", "set-limit", "orders", "late", "9")
    ok(up.folder, "stream", "disable", "orders", "late")
    late = status(up.folder, lambda it: not it["sources"][1]["enabled"])["sources"][1]
    assert (late["weight"], late["max_qps"]) == (4, 9)
    ok(up.folder, "stream", "enable", "orders", "late")
    status(up.folder, lambda it: it["sources"][1]["enabled"])
    wrong = run(up.folder, "stream", "set-weight", "orders", "lat", "4")
    assert (wrong.returncode, "its sources are late, orders" in wrong.stderr) == (1, True)
    assert "would never let a message through" in run(up.folder, "stream", "set-weight", "orders", "late", "0").stderr
    assert "there is no stream 'ordres'" in run(up.folder, "stream", "drain", "ordres").stderr


def test_a_stream_is_drained_and_resumed(up: Process) -> None:
    assert "is drained" in ok(up.folder, "stream", "drain", "orders")
    before = status(up.folder, lambda it: it["mode"] == "drain")["sources"][0]["done"]
    ok(up.folder, "stream", "publish", "orders", '{"n": 2}')
    assert status(up.folder, lambda it: it["mode"] == "drain")["sources"][0]["done"] == before
    ok(up.folder, "stream", "resume", "orders")
    status(up.folder, lambda it: it["sources"][0]["done"] == before + 1)


def test_the_same_through_a_server_from_a_folder_where_nothing_is(up: Process, tmp_path: Path) -> None:
    there = ("--server", up.line("serving http").split()[-1])
    dead = status(up.folder, lambda it: True)["sources"][0]["dead"]
    ok(up.folder, "stream", "publish", "orders", f'{{"n": -7, "text": "{"x" * 5000}"}}')
    status(up.folder, lambda it: it["sources"][0]["dead"] == dead + 1)

    letters = listing(tmp_path, "stream", "dead-letters", "orders", *there)
    assert letters == listing(up.folder, "stream", "dead-letters", "orders")
    assert len(letters[0]["payload"]) > 5000, "a long one has come whole"
    newest = ("--id", str(letters[0]["id"]))
    assert "Check: ValueError: a negative number" in ok(tmp_path, "stream", "dead-letters", *newest, *there)
    filters = ("--since", "1h", "--plan", "Check", "--source", "orders", "--why", "failed", "--error")
    assert listing(tmp_path, "stream", "dead-letters", *filters, "NEGATIVE", *there) == letters
    assert ok(tmp_path, "stream", "replay", *filters, "else", *there) == "0 dead letters are tried again\n"

    ok(tmp_path, "stream", "set-limit", "orders", "late", "0", *there)
    ok(tmp_path, "stream", "disable", "orders", "late", *there)
    assert status(up.folder, lambda it: not it["sources"][1]["enabled"])["sources"][1]["max_qps"] is None
    ok(tmp_path, "stream", "enable", "orders", "late", *there)
    assert "its sources are late, orders" in run(tmp_path, "stream", "enable", "orders", "lat", *there).stderr
    assert "there is no stream 'ordres'" in run(tmp_path, "stream", "drain", "ordres", *there).stderr

    assert "is drained" in ok(tmp_path, "stream", "drain", "orders", *there)
    told = settled(listing(tmp_path, "stream", "status", "orders", *there))
    assert told == settled(listing(up.folder, "stream", "status", "orders"))
    assert (told[0]["dispatchers"][0]["mode"], told[0]["dead"]) == ("drain", len(letters))
    assert "1 dead letter is tried again" in ok(tmp_path, "stream", "replay", *newest, *there)
    ok(tmp_path, "stream", "resume", "orders", *there)
    status(up.folder, lambda it: it["sources"][0]["dead"] == dead + 2)
    done = status(up.folder, lambda it: True)["sources"][0]["done"]
    assert ok(tmp_path, "stream", "publish", "orders", '{"n": 3}', '{"n": 4}', *there) == "2 messages are in orders\n"
    status(up.folder, lambda it: it["sources"][0]["done"] == done + 2)


def test_a_dead_letter_is_tried_again_with_another_payload(up: Process) -> None:
    before = status(up.folder, lambda it: True)["sources"][0]
    ok(up.folder, "stream", "publish", "orders", '{"n": -8}')
    status(up.folder, lambda it: it["sources"][0]["dead"] == before["dead"] + 1)
    number = str(listing(up.folder, "stream", "dead-letters", "orders")[0]["id"])
    wrong = run(up.folder, "stream", "replay", "orders", "--payload", '{"n": 8}')
    assert (wrong.returncode, "another payload is for one message" in wrong.stderr) == (1, True)
    ok(up.folder, "stream", "replay", "orders", "--id", number, "--payload", '{"n": 8}')
    status(up.folder, lambda it: it["sources"][0]["done"] == before["done"] + 1)
    assert number not in [str(each["id"]) for each in listing(up.folder, "stream", "dead-letters", "orders")]


def test_a_stream_from_configuration_runs_beside(up: Process) -> None:
    process = Process(up.folder, "stream", "run", "streams.yaml")
    try:
        process.line("stream is running")
        ok(up.folder, "stream", "publish", "things", '{"n": 1}')
        asked_until(
            lambda: listing(up.folder, "stream", "status", "configured"),
            lambda found: found and found[0]["dispatchers"][0]["sources"][0]["done"] == 1,
        )
        process.signal(signal.SIGTERM)
        assert process.wait() == 0
        assert "drained" in process.output
    finally:
        process.close()


def test_a_stream_that_is_declared_and_does_not_run_can_be_changed(up: Process) -> None:
    (up.folder / "idle.py").write_text(APP.replace('"orders", plans', '"idle", plans'))
    assert "there is no stream 'idle'" in run(up.folder, "stream", "drain", "idle").stderr
    assert "is drained" in ok(up.folder, "stream", "drain", "idle", "--app", "idle.py")
    assert listing(up.folder, "stream", "status", "idle", "--app", "idle.py")[0]["dispatchers"] == []
    assert "takes messages again" in ok(up.folder, "stream", "resume", "idle", "--app", "idle.py")


@pytest.mark.parametrize(
    ("arguments", "complaint", "exit"),
    [
        (("stream", "run", "none.yaml"), "there is no file none.yaml", 1),
        (("stream", "run", "app.py", "ordres"), "declares no stream 'ordres'; it declares orders", 1),
        (("stream", "dead-letters", "--why", "bad"), 'Choose from: "failed", "undecodable", "lost"', 2),
        (("stream", "status", "--watch"), "needs a terminal", 1),
    ],
)
def test_a_wrong_command_is_answered_in_one_line(
    up: Process, arguments: tuple[str, ...], complaint: str, exit: int
) -> None:
    done = run(up.folder, *arguments)
    assert done.returncode == exit
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1
