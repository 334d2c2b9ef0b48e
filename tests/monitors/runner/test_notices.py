"""Notices of alerts: each arrives, none twice, even if its sender dies."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import eventually, running_maintenance, running_worker, value
from tests.support.mail_server import mail_server
from tests.support.operate import list_audit
from tests.support.operate_streams import ack_alerts, add_silence, end_silence
from tests.support.ports import closed_port
from tests.support.receiver import Request, receiver
from tests.support.watched import Pages, event, heat_monitor, watching
from tidemill import App
from tidemill.core.clock import VirtualClock
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.monitors import Command, Email, PagerDuty, Slack, Webhook
from tidemill.monitors.definition.channels import Channel, Notice, NotifiedAlert
from tidemill.monitors.runner.notices import TASK, NotSentError, deliver
from tidemill.store.database import Database
from tidemill.store.monitors.alerts import list_alerts, show_history
from tidemill.store.monitors.problems import list_problems

ALERT = NotifiedAlert(
    alert=1,
    what="opened",
    monitor="heat",
    trigger="hot",
    entity="a",
    kind="lasting",
    severity="warning",
    started_at=1000.0,
    opened_at=1000.0,
)
UNSENT = "SELECT count(*) FROM tidemill.alert_notice WHERE sent_at IS NULL"


async def told(app: App, database: Database, source: Pages, *channels: Channel, ticks: int = 1) -> None:
    """Tick, with the application's task for notices at hand."""
    watch = app.monitor(heat_monitor(source, notify=channels))
    async with watching(database, watch, VirtualClock(1000.0), task=app.declarations.tasks[TASK]) as watcher:
        for _ in range(ticks):
            await watcher.one_tick()


async def test_a_webhook_gets_each_alert_once_and_can_prove_its_sender(app: App, database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=95))
    failing = [3]

    def answer(request: Request) -> tuple[int, bytes]:
        failing[0] -= 1
        return (500, b"not yet") if failing[0] > 0 else (200, b"")

    with receiver(answer) as server:
        await told(app, database, source, Webhook(url=server.url, secret="s3cret"), ticks=3)
        soon = '{"retry": {"max_attempts": 9, "backoff": 0.01}}'
        await database.fetch("UPDATE tidemill.job SET options = $1::text::json", soon)
        async with running_maintenance(app), running_worker(app):
            await eventually(lambda: _none(database))
    assert len(server.requests) == 3
    assert len({request.headers["Idempotency-Key"] for request in server.requests}) == 1
    request = server.requests[-1]
    body = json.loads(request.body)
    assert sorted(alert["trigger"] for alert in body["alerts"]) == ["hot", "peak"]
    moment, _, proof = request.headers["Tidemill-Signature"].removeprefix("t=").partition(",v1=")
    assert proof == hmac.new(b"s3cret", f"{moment}.".encode() + request.body, hashlib.sha256).hexdigest()


async def test_a_message_that_was_sent_but_not_marked_is_sent_again_under_the_same_name(
    app: App, database: Database
) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    with receiver() as server:
        await told(app, database, source, Slack(url=server.url))
        async with running_worker(app):
            await eventually(lambda: _none(database))
        await database.fetch("UPDATE tidemill.alert_notice SET sent_at = NULL")  # as if its sender had died then
        batch = await value(database, "SELECT batch FROM tidemill.alert_notice")
        await app.enqueue(TASK, monitor="heat", channel="slack", batch=batch)
        async with running_worker(app):
            await eventually(lambda: _none(database))
    first, second = server.requests
    assert first.headers["Idempotency-Key"] == second.headers["Idempotency-Key"]
    assert first.body == second.body
    assert "a: hot (warning) since" in json.loads(first.body)["text"]


async def test_a_digest_gathers_what_comes_together(app: App, database: Database) -> None:
    source = Pages()
    source.add(*(event(i, 999.0, f"e{i}", heat=60) for i in range(5)))
    with receiver() as server:
        await told(app, database, source, Webhook(url=server.url, digest="10s", name="digest"))
        async with running_worker(app):
            await eventually(lambda: _none(database))
    assert len(server.requests) == 1
    assert len(json.loads(server.requests[0].body)["alerts"]) == 5


async def test_groups_get_messages_of_their_own_and_others_are_not_told(app: App, database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, "a", heat=95), event(2, 999.0, "b", heat=95))
    with receiver() as server:
        grouped = Webhook(url=f"{server.url}/grouped", group_by=("entity",), name="grouped")
        only = Webhook(url=f"{server.url}/critical", severities=("critical",), name="only")
        await told(app, database, source, grouped, only)
        async with running_worker(app):
            await eventually(lambda: _none(database))
    paths = sorted(request.path for request in server.requests)
    assert paths == ["/critical", "/grouped", "/grouped"]
    critical = next(json.loads(r.body) for r in server.requests if r.path == "/critical")
    assert {alert["trigger"] for alert in critical["alerts"]} == {"peak"}


async def test_of_a_silenced_alert_nobody_is_told_before_the_silence_ends_and_then_only_if_it_is_open(
    app: App, database: Database
) -> None:
    source = Pages()
    source.add(event(1, 999.0, "a", heat=60), event(2, 999.0, "b", heat=60))
    with receiver() as server:
        watch = app.monitor(heat_monitor(source, notify=[Webhook(url=server.url)]))
        async with watching(database, watch, VirtualClock(1000.0), task=app.declarations.tasks[TASK]) as watcher:
            await add_silence(database, "heat", {"trigger": "*"}, starts_at=0.0, ends_at=2000.0, by="me")
            await watcher.one_tick()
            alerts = {row["entity"]: row["id"] for row in await list_alerts(database)}
            await ack_alerts(database, [alerts["a"]], by="me", at=1001.0)
        assert await value(database, "SELECT extract(epoch FROM due_at)::int FROM tidemill.job") == 2000
        async with running_worker(app):
            await eventually(lambda: _none(database))
    assert [alert["entity"] for r in server.requests for alert in json.loads(r.body)["alerts"]] == ["b"]


async def test_when_a_silence_is_ended_early_people_are_told_at_once(app: App, database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, "a", heat=60))
    with receiver() as server:
        watch = app.monitor(heat_monitor(source, notify=[Webhook(url=server.url)]))
        until = time.time() + 3600
        silence = await add_silence(database, "heat", {"trigger": "*"}, starts_at=0.0, ends_at=until, by="me")
        async with watching(database, watch, VirtualClock(1000.0), task=app.declarations.tasks[TASK]) as watcher:
            await watcher.one_tick()
        async with running_worker(app):
            assert await value(database, "SELECT due_at > now() FROM tidemill.job")
            await end_silence(database, silence, by="me")
            await eventually(lambda: _none(database))
    assert [alert["entity"] for r in server.requests for alert in json.loads(r.body)["alerts"]] == ["a"]
    (entry,) = await list_audit(database, limit=1)
    before = json.loads(entry["before"])
    assert (entry["who"], entry["action"], entry["target"]) == ("me", "monitor.unsilence", "heat")
    assert (before["silence"], before["matchers"], before["until"]) == (silence, {"trigger": "*"}, pytest.approx(until))
    with pytest.raises(NotFoundError, match="that has not ended"):
        await end_silence(database, silence, by="me")


async def test_when_one_of_two_silences_ends_nobody_is_told_before_the_other_has_ended(
    app: App, database: Database
) -> None:
    source, now = Pages(), time.time()
    source.add(event(1, now, "a", heat=60), event(2, now, "b", heat=60))
    with receiver() as server:
        watch = app.monitor(heat_monitor(source, notify=[Webhook(url=server.url)]))
        first, second = [
            await add_silence(database, "heat", {"entity": who}, starts_at=0.0, ends_at=now + 3600 - n, by="me")
            for n, who in enumerate(["*", "a"])
        ]
        async with watching(database, watch, VirtualClock(now), task=app.declarations.tasks[TASK]) as watcher:
            await watcher.one_tick()
        batches = "SELECT array_agg(DISTINCT batch) FROM tidemill.alert_notice WHERE sent_at IS NULL"
        assert await value(database, batches) == [f"s{first}"]
        async with running_worker(app):
            await end_silence(database, first, by="me")
            await eventually(lambda: _only(database, batches, [f"s{second}"]), what="b's is told, a's is put off")
            later = "SELECT bool_and(due_at > now() + '30 min') FROM tidemill.job"
            await eventually(lambda: value(database, later), what="nothing is left to do but what was put off")
            await end_silence(database, second, by="me")
            await eventually(lambda: _none(database))
    assert [[alert["entity"] for alert in json.loads(r.body)["alerts"]] for r in server.requests] == [["b"], ["a"]]


async def _only(database: Database, statement: str, wanted: list[str]) -> bool:
    return await value(database, statement) == wanted


WAITING = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


@pytest.mark.parametrize("first", ["tick", "end"])
async def test_a_silence_that_ends_while_a_tick_opens_an_alert_neither_keeps_nor_doubles_its_notice(
    first: str, app: App, database: Database
) -> None:
    """One of the two is held up in the middle of its transaction, by a lock on a table that it writes to last."""
    source = Pages()
    source.add(event(1, 999.0, "a", heat=60))
    with receiver() as server:
        watch = app.monitor(heat_monitor(source, notify=[Webhook(url=server.url)]))
        silence = await add_silence(
            database, "heat", {"trigger": "*"}, starts_at=0.0, ends_at=time.time() + 3600, by="me"
        )
        async with watching(database, watch, VirtualClock(1000.0), task=app.declarations.tasks[TASK]) as watcher:
            acts = {"tick": watcher.one_tick, "end": lambda: end_silence(database, silence, by="me")}
            table = {"tick": "alert_notice", "end": "audit"}[first]
            async with database.transaction() as holding:
                await holding.execute(f"LOCK TABLE tidemill.{table} IN SHARE ROW EXCLUSIVE MODE")
                held = asyncio.create_task(acts.pop(first)())
                await eventually(lambda: value(database, WAITING), what="the first one waits for the table")
                (other,) = (asyncio.create_task(act()) for act in acts.values())
                await eventually(
                    lambda: _waits_or_is_done(database, other), what="the other one has come as far as it can"
                )
            await asyncio.gather(held, other)
        async with running_worker(app):
            await eventually(lambda: _none(database), what="somebody is told, long before the silence was to end")
            await eventually(lambda: value(database, "SELECT count(*) = 0 FROM tidemill.job"), what="no job is left")
    assert [alert["entity"] for r in server.requests for alert in json.loads(r.body)["alerts"]] == ["a"]


async def _waits_or_is_done(database: Database, task: asyncio.Task[Any]) -> bool:
    return task.done() or await value(database, WAITING) >= 2


async def test_a_command_gets_the_message_on_its_standard_input(app: App, database: Database, tmp_path: Path) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    program = "import os, sys; open(sys.argv[1], 'a').write(sys.stdin.read() + os.environ['TIDEMILL_MESSAGE_ID'])"
    file = tmp_path / "told"
    await told(app, database, source, Command(argv=[sys.executable, "-c", program, str(file), "{title}"]))
    async with running_worker(app):
        await eventually(lambda: _none(database))
    message, _, id = file.read_text().strip().rpartition("}")
    assert json.loads(message + "}")["id"] == id


async def test_a_command_is_judged_by_its_own_end_whatever_it_leaves_behind_and_however_much_it_writes(
    tmp_path: Path,
) -> None:
    notice, left = Notice("m", "heat", "c", (ALERT,)), tmp_path / "left"

    async def run(script: str, timeout: str = "30s") -> None:
        async with asyncio.timeout(60):
            await deliver(Command(argv=["sh", "-c", script], timeout=timeout), notice)

    await run(f"sleep 600 & echo $! > {left}")
    os.kill(int(left.read_text()), signal.SIGKILL)  # It may go on: that is not for us to end.
    with pytest.raises(NotSentError, match=r"sh ended with 3: .*the end$"):
        await run("head -c 1000000 /dev/zero | tr '\\0' x >&2; printf 'the end' >&2; exit 3")
    with pytest.raises(NotSentError, match=r"sh did not end within 0.5 s"):
        await run(f"sleep 600 & echo $! > {left}; dd if=/dev/zero bs=1000000 count=1 >&2; wait", "500ms")
    await eventually(lambda: not _lives(int(left.read_text())), what="what a command has started ends with it")


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_mail_is_sent_through_an_smtp_server(app: App, database: Database) -> None:
    source = Pages()
    source.add(event(1, 999.0, heat=60))
    with mail_server() as (port, mails):
        await told(app, database, source, Email(to=["o@x.org"], sender="t@x.org", server="127.0.0.1", port=port))
        async with running_worker(app):
            await eventually(lambda: _none(database))
    assert len(mails) == 1
    assert "Subject: a: hot (warning)" in mails[0]
    assert "@tidemill>" in mails[0]


#: Names as events bring them: no channel may stumble over one.
ODD_NAMES = [
    "two\r\nlines",
    "日本",
    "a/b c",
    "{title}",
    "x" * 600,
    "tab\tand\x07bell",
    "\N{RIGHT-TO-LEFT OVERRIDE}x",
    "'\"<b>",
]


@pytest.mark.parametrize("kind", ["webhook", "slack", "pagerduty", "command", "email"])
async def test_an_alert_of_an_entity_with_any_name_reaches_every_channel(
    kind: str, app: App, database: Database, tmp_path: Path
) -> None:
    source, file = Pages(), tmp_path / "told"
    source.add(*(event(number, 999.0, name, heat=60) for number, name in enumerate(ODD_NAMES)))
    append = f"import sys; open({str(file)!r}, 'a').write(sys.stdin.read() + '\\n')"
    with receiver() as server, mail_server() as (port, mails):
        options: dict[str, Any] = {"group_by": ("entity",), "digest": "10s"}
        channels: dict[str, Channel] = {
            "webhook": Webhook(url=server.url, secret="s", **options),
            "slack": Slack(url=server.url, **options),
            "pagerduty": PagerDuty(routing_key="r", url=server.url, **options),
            "command": Command(argv=[sys.executable, "-c", append, "{title}"], **options),
            "email": Email(to="o@x.org", sender="t@x.org", server="127.0.0.1", port=port, **options),
        }
        await told(app, database, source, channels[kind])
        async with running_worker(app):
            await eventually(lambda: _none(database))
    lines = file.read_text().splitlines() if kind == "command" else mails if kind == "email" else server.requests
    assert len(lines) == len(ODD_NAMES)
    assert await value(database, "SELECT count(*) = 0 FROM tidemill.alert_history WHERE action = 'notice failed'")


async def test_the_end_of_an_alert_is_told_where_that_is_wanted(app: App, database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, heat=60))
    with receiver() as server:
        watch = app.monitor(heat_monitor(source, notify=[Webhook(url=server.url, resolved=True)]))
        async with watching(database, watch, clock, task=app.declarations.tasks[TASK]) as watcher:
            await watcher.one_tick()
            source.add(event(2, 1000.0, heat=0))
            clock.advance(1.0)
            await watcher.one_tick()
        async with running_worker(app):
            await eventually(lambda: _none(database))
    assert sorted(a["what"] for r in server.requests for a in json.loads(r.body)["alerts"]) == ["opened", "resolved"]


async def opened_and_resolved(app: App, database: Database, *channels: Channel) -> int:
    """An alert that opens and is resolved a second later, with the application's task for notices at hand."""
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, heat=60))
    watch = app.monitor(heat_monitor(source, notify=channels))
    async with watching(database, watch, clock, task=app.declarations.tasks[TASK]) as watcher:
        await watcher.one_tick()
        source.add(event(2, 1000.0, heat=0))
        clock.advance(1.0)
        await watcher.one_tick()
    return (await list_alerts(database))[0]["id"]


async def deliveries(database: Database, alert: int) -> list[tuple[str, str, str | None]]:
    rows = await show_history(database, alert)
    return [(row["action"], row["who"], row["detail"]) for row in rows if row["action"].startswith("notice")]


@pytest.mark.parametrize("digest", [0, "0.1s"], ids=["at once", "digest"])
async def test_the_end_of_an_alert_is_not_told_before_its_beginning_and_every_try_is_in_its_history(
    app: App, database: Database, digest: Any
) -> None:
    failing, source, clock = [True], Pages(), VirtualClock(1000.0)
    source.add(event(1, 999.0, heat=60))

    def answer(request: Request) -> tuple[int, bytes]:
        return (500, b"not yet") if failing[0] else (200, b"")

    async def is_tried() -> bool:
        return len(server.requests) > 0

    with receiver(answer) as server:
        channel = Webhook(url=server.url, resolved=True, digest=digest)
        watch = app.monitor(heat_monitor(source, notify=[channel]))
        task = app.declarations.tasks[TASK]
        async with (
            watching(database, watch, clock, task=task) as watcher,
            running_maintenance(app),
            running_worker(app),
        ):
            await watcher.one_tick()
            await eventually(is_tried)
            source.add(event(2, 1000.0, heat=0))
            clock.advance(1.0)
            await watcher.one_tick()
            failing[0] = False
            await eventually(lambda: _none(database))
        alert = (await list_alerts(database))[0]["id"]
    told = [each["what"] for request in server.requests for each in json.loads(request.body)["alerts"]]
    assert told == ["opened"] * (len(told) - 1) + ["resolved"]
    assert len({request.headers["Idempotency-Key"] for request in server.requests}) == 2
    failed = ("notice failed", "webhook", f"opened: {server.url} answered 500: not yet")
    sent = [("notice sent", "webhook", "opened"), ("notice sent", "webhook", "resolved")]
    assert await deliveries(database, alert) == [failed] * (len(told) - 2) + sent


async def test_an_alert_is_escalated_unless_it_is_acknowledged_or_over_by_then(app: App, database: Database) -> None:
    source, clock = Pages(), VirtualClock(1000.0)
    source.add(*(event(number, 999.0, who, heat=60) for number, who in enumerate("abc")))
    with receiver() as server:
        first = Webhook(url=f"{server.url}/first", name="first")
        boss = Webhook(url=f"{server.url}/boss", name="boss", after="10m", resolved=True)
        watch = app.monitor(heat_monitor(source, notify=[first, boss]))
        async with watching(database, watch, clock, task=app.declarations.tasks[TASK]) as watcher:
            await watcher.one_tick()
            due = "SELECT extract(epoch FROM due_at)::int FROM tidemill.job WHERE args ->> 'channel' = 'boss'"
            assert await value(database, due) == 1600
            alerts = {row["entity"]: row["id"] for row in await list_alerts(database)}
            await ack_alerts(database, [alerts["a"]], by="me", at=1001.0)
            source.add(event("over", 1000.0, "b", heat=0))
            clock.advance(1.0)
            await watcher.one_tick()
        async with running_worker(app):
            await eventually(lambda: _none(database))
    told = {(r.path, each["entity"], each["what"]) for r in server.requests for each in json.loads(r.body)["alerts"]}
    assert told == {*(("/first", who, "opened") for who in "abc"), ("/boss", "c", "opened")}
    dropped = [each for each in await deliveries(database, alerts["a"]) if each[1] == "boss"]
    assert dropped == [("notice dropped", "boss", "opened: it was acknowledged before")]
    dropped = [each[::2] for each in await deliveries(database, alerts["b"]) if each[1] == "boss"]
    assert dropped == [
        ("notice dropped", "opened: it was resolved before"),
        ("notice dropped", "resolved: its opening was not sent either"),
    ]


async def test_pagerduty_gets_an_incident_for_each_alert_and_its_end(app: App, database: Database) -> None:
    with receiver() as server:
        alert = await opened_and_resolved(app, database, PagerDuty(routing_key="r0uting", url=server.url))
        async with running_worker(app):
            await eventually(lambda: _none(database))
    events = [json.loads(request.body) for request in server.requests]
    assert [(each["event_action"], each["dedup_key"]) for each in events] == [
        ("trigger", f"tidemill/heat/{alert}"),
        ("resolve", f"tidemill/heat/{alert}"),
    ]
    assert {each["routing_key"] for each in events} == {"r0uting"}
    assert events[0]["payload"]["severity"] == "warning"
    assert events[0]["payload"]["source"] == "a"
    assert "hot" in events[0]["payload"]["summary"]


async def test_a_digest_has_one_message_for_each_group(app: App, database: Database) -> None:
    source = Pages()
    source.add(*(event(i, 999.0, f"e{i}", heat=95) for i in range(3)))
    with receiver() as server:
        channel = Webhook(url=server.url, digest="10s", group_by=("trigger",))
        await told(app, database, source, channel)
        async with running_worker(app):
            await eventually(lambda: _none(database))
    found = [json.loads(request.body)["alerts"] for request in server.requests]
    assert sorted((each[0]["trigger"], len(each)) for each in found) == [("hot", 3), ("peak", 3)]


class Own(Channel, frozen=True, kw_only=True):
    """A channel of a user: it fails at first, and its filter does for one trigger."""

    got: list[Notice]

    def wants(self, trigger: str, severity: str) -> bool:
        if trigger == "peak":
            raise SystemExit("no such trigger")
        return True

    def send(self, notice: Notice) -> None:
        self.got.append(notice)
        if len(self.got) == 1:
            raise ValueError("not yet")


async def test_a_channel_of_a_user_may_fail_without_harm_to_alerts_or_other_channels(
    app: App, database: Database
) -> None:
    source, got = Pages(), list[Notice]()
    source.add(event(1, 999.0, heat=95))
    with receiver() as server:
        await told(app, database, source, Own(got=got), Webhook(url=server.url))
        soon = '{"retry": {"max_attempts": 9, "backoff": 0.01}}'
        await database.fetch("UPDATE tidemill.job SET options = $1::text::json", soon)
        async with running_maintenance(app), running_worker(app):
            await eventually(lambda: _none(database))
    assert [[alert.trigger for alert in notice.alerts] for notice in got] == [["hot"], ["hot"]]
    assert {alert["trigger"] for r in server.requests for alert in json.loads(r.body)["alerts"]} == {"hot", "peak"}
    problems = await list_problems(database, "heat")
    assert [(each["place"], each["entity"], each["error"]) for each in problems] == [
        ("channel own", "a", "SystemExit: no such trigger")
    ]


async def _none(database: Database) -> bool:
    sent = await value(database, "SELECT count(*) FROM tidemill.alert_notice WHERE sent_at IS NOT NULL")
    return bool(sent) and not await value(database, UNSENT)


async def test_where_a_message_could_not_be_sent_to_is_told_without_the_secret_in_it() -> None:
    message = Notice("m", "heat", "c", (ALERT,))
    with receiver(lambda request: (404, b"no such hook")) as server:
        url = f"{server.url}/services/s3cret?key=s3cret"
        with pytest.raises(NotSentError, match=r"http://127.0.0.1:\d+ answered 404: no such hook") as refused:
            await deliver(Slack(url=url), message)
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/services/s3cret?key=s3cret"
        with pytest.raises(NotSentError, match=r"http://127.0.0.1:\d+ does not answer") as absent:
            await deliver(Webhook(url=url), message)
    elsewhere = {"Location": "https://s3cret@hooks.example/s3cret"}
    with (
        receiver(lambda request: (302, b"", elsewhere)) as server,
        pytest.raises(NotSentError, match=r"a redirect to https://hooks.example: name that address") as moved,
    ):
        await deliver(Webhook(url=f"{server.url}/s3cret"), message)
    with pytest.raises(ConfigError, match="is not an http or https address") as other:
        Slack(url="ftp://u:s3cret@127.0.0.1/s3cret")
    for each in (refused, absent, moved, other):
        assert "cret" not in str(each.value)
        assert each.value.__cause__ is None  # Its words would be in the job's traceback.
