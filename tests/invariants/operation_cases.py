"""One case for each operation: what there is before it, its arguments, and its command line where it has one.

A new operation needs a line in `CASES`. `prepare` makes what the operation works on; ids begin at 1 in each case. The
arguments in `wrong` must be refused with the same error wherever the operation is done. `command` is what a user types;
`items` says that the command prints the list in the result rather than the result.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from msgspec import Raw, Struct

from tests.support.operate import cancel_jobs, create_token, set_control, set_paused
from tests.support.operate_streams import add_silence
from tests.support.web_app import make_ovens
from tidemill import App
from tidemill.core.codec import encode
from tidemill.core.ticks import Completed, Started
from tidemill.dags.reducer.events import NodeEnded, NodeFailure
from tidemill.dags.reducer.journal import encode_tick as encode_dag_tick
from tidemill.flows import StartEvent
from tidemill.flows.encoding.journal import encode_tick
from tidemill.ops.admin import audit, hosts, overview, search, tokens
from tidemill.ops.explain import ExplainObject
from tidemill.ops.jobs import jobs, queues, schedules, workers
from tidemill.ops.monitors import alerts, backtests, monitors, roster
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.runs import dags, inputs, runs
from tidemill.ops.streams import dead_letters, streams
from tidemill.store.database import Database
from tidemill.store.jobs.pages import JobFilter, RunFilter
from tidemill.store.jobs.schedules import declare_schedules
from tidemill.store.jobs.workers import WorkerCard, register_worker
from tidemill.store.monitors.alerts import Unseen
from tidemill.store.retention_settings import Retention
from tidemill.store.streams import streams as streams_store

SPAN = (datetime(2023, 11, 14, tzinfo=UTC), datetime(2023, 11, 16, tzinfo=UTC))


class World(NamedTuple):
    """What a case prepares: the application and its empty database; and the address of the server."""

    app: App
    database: Database
    url: str


Prepare = Callable[[World], Awaitable[Any]]


async def nothing(world: World) -> None:
    """An empty database."""


class Case(NamedTuple):
    """How one operation is tried."""

    args: Struct
    prepare: Prepare = nothing
    wrong: tuple[Struct, ...] = ()
    command: str | None = None
    items: bool = False
    rpc: tuple[str, str] | None = None


async def two_jobs(world: World) -> None:
    """Job 1 waits, job 2 was cancelled; job 3 is due in an hour."""
    for args in ({"order": 1}, {"order": 2}):
        await world.app.enqueue("send", args=args, tags=["case"])
    await world.app.enqueue("count", delay="1h")
    await cancel_jobs(world.database, [2], by="ann")


async def two_runs(world: World) -> None:
    """Run 1 is of a flow, run 2 of a dag; no run worker has begun them."""
    await world.app.start("Asking", who="ann", unique_key="k")
    await world.app.start("order", order=5)


async def begun_runs(world: World) -> None:
    """Run 1 has begun; run 2 waits for an answer to `approve`, which one of its nodes asks; run 3 has ended."""
    await two_runs(world)
    await world.app.start("Asking")
    started = encode_tick(Started(1000.0, StartEvent(who="ann")))  # pyright: ignore[reportCallIssue] - a field of it
    packed = Completed(1001.0, 1, NodeEnded("succeeded", 1, Raw(b"{}")))
    await journal(world, 1, started)
    await journal(world, 2, encode_dag_tick(Started(1000.0, {"order": 5})), encode_dag_tick(packed))
    await world.database.fetch("INSERT INTO tidemill.run_input (run_id, node, prompt) VALUES (2, 'approve', 'Really?')")
    await world.database.fetch("UPDATE tidemill.run SET state = 'cancelled', ended_at = now() WHERE id = 3")


async def stopped_runs(world: World) -> None:
    """As `begun_runs`, but run 1 needs attention."""
    await begun_runs(world)
    await world.database.fetch("UPDATE tidemill.run SET state = 'needs_attention', note = 'lost' WHERE id = 1")


async def a_failed_dag(world: World) -> None:
    """Run 2 is of a dag, and its first node has failed."""
    await two_runs(world)
    failed = Completed(1001.0, 1, NodeEnded("failed", 1, error=NodeFailure("ValueError", "no such order")))
    await journal(world, 2, encode_dag_tick(Started(1000.0, {"order": 5})), encode_dag_tick(failed))
    await world.database.fetch("UPDATE tidemill.run SET state = 'failed', ended_at = now() WHERE id = 2")


async def journal(world: World, run: int, *ticks: bytes) -> None:
    """Store ticks as a run worker would, which then lets the run sleep."""
    for seq, tick in enumerate(ticks, 1):
        await world.database.fetch("INSERT INTO tidemill.tick (run_id, seq, data) VALUES ($1, $2, $3)", run, seq, tick)
    await world.database.fetch("UPDATE tidemill.run SET seq = $2, awake = false WHERE id = $1", run, len(ticks))


async def a_worker(world: World) -> None:
    """Worker 1 lives on host alpha."""
    card = WorkerCard("alpha", 17, ("mail",), ("send",), 4, {"tidemill": "1"})
    await register_worker(world.database, card, lease_seconds=3600.0)


async def the_schedules(world: World) -> None:
    """The application's schedule is stored."""
    await declare_schedules(world.database, world.app.name, world.app.declarations.stored_schedules())


async def a_paused_schedule(world: World) -> None:
    await the_schedules(world)
    await set_paused(world.database, "yearly", True, by="ann")


async def a_paused_queue(world: World) -> None:
    await set_control(world.database, "*", "mail", "pause", by="ann")


DISPATCHER = {
    "mode": "run", "in_flight": 0, "max_concurrency": 9, "engines": 1, "restarts": 0, "plans": {},
    "live": {"open": 0, "done": 0, "shed": 0},
    "sources": [
        {
            "name": name, "enabled": True, "weight": 1, "max_qps": None, "rate": 0, "lag": 3, "in_flight": 0, "done": 7,
            "retried": 0, "dead": 1, "expired": 0, "duplicates": 0,
        }
        for name in ("web", "shop")
    ],
}  # fmt: skip


async def a_stream(world: World) -> None:
    """A dispatcher runs stream `posts`, which has two dead letters."""
    status = msgspec.json.encode(DISPATCHER)
    await streams_store.tell_status(world.database, uuid4(), "posts", "alpha", 17, status)
    await world.database.fetch(
        "INSERT INTO tidemill.dead_letter (stream, source, place, why, attempts, at, error, plans, payload) "
        "SELECT 'posts', 'web', 'p' || n, 'failed', 3, '2026-01-02Z', 'Rank: too long', '{Rank}', '{}' "
        "FROM generate_series(1, 2) AS n"
    )


async def a_monitor(world: World) -> None:
    """Monitor `ovens` follows two entities, one of which has been hot; alert 1 is open, alert 2 is resolved."""
    if "ovens" not in world.app.monitors:
        world.app.monitor(make_ovens())
    status = {"health": "healthy", "failures": 0, "triggers": ["hot"]}
    for statement, *args in (
        ("INSERT INTO tidemill.monitor (name, version, keep, status) VALUES ('ovens', 'v', 1e9, $1)", encode(status)),
        ("INSERT INTO tidemill.monitor_entity (monitor, entity, shard) VALUES ('ovens', 'a', 1), ('ovens', 'b', 2)",),
        (
            "INSERT INTO tidemill.monitor_event (monitor, entity, source_id, at, tick, data) "
            "SELECT 'ovens', 'a', 'e' || n, 1.7e9 + n, n, json_build_object('oven', 'a', 'celsius', 60 + n) "
            "FROM generate_series(1, 30) AS n",
        ),
        (
            "INSERT INTO tidemill.alert (monitor, trigger, entity, kind, severity, started_at, opened_at, tick, "
            "resolved_at, explain) SELECT 'ovens', 'hot', e, 'sustained', 'warning', '2026-01-02Z', '2026-01-02Z', 1, "
            "CASE WHEN e = 'b' THEN '2026-01-03Z'::timestamptz END, '{}' FROM unnest('{a,b}'::text[]) AS e",
        ),
        (
            "INSERT INTO tidemill.alert_history (alert, at, action, who) "
            "VALUES (1, '2026-01-02Z', 'opened', 'monitor'), (2, '2026-01-02Z', 'opened', 'monitor')",
        ),
    ):
        await world.database.fetch(statement, *args)


async def a_silence(world: World) -> None:
    await a_monitor(world)
    ends = time.time() + 3600
    await add_silence(world.database, "ovens", {"trigger": "*"}, starts_at=0.0, ends_at=ends, by="ann")


async def a_token(world: World) -> None:
    await create_token(world.database, "ops", "operate", by="ann")


CASES: dict[str, Case] = {
    "explain": Case(
        ExplainObject(id="r2", forward=True),
        begun_runs,
        tuple(ExplainObject(id=id) for id in ("99", "r99", "a99", "d99", "r2/none", "none", "9" * 30)),
        command="explain r2 --forward --json",
    ),
    # jobs
    "list_jobs": Case(
        jobs.ListJobs(state=("ready",), task="send"),
        two_jobs,
        (jobs.ListJobs(limit=0), jobs.ListJobs(limit=1000), jobs.ListJobs(state=("lost",)), jobs.ListJobs(cursor="?")),
        command="jobs --state ready --task send --json",
        items=True,
        rpc=("Jobs", "List"),
    ),
    "get_job": Case(
        jobs.GetJob(id=2),
        two_jobs,
        (jobs.GetJob(id=99), jobs.GetJob(id=-1)),
        command="job 2 --json",
        rpc=("Jobs", "Get"),
    ),
    "get_job_log": Case(jobs.GetJob(id=1), two_jobs),
    "enqueue_job": Case(
        jobs.EnqueueJob(task="send", args={"order": 7}, priority=8, tags=["vip"]),
        wrong=(
            jobs.EnqueueJob(task="nothing"),
            jobs.EnqueueJob(task="send", args={"order": "x"}),
            jobs.EnqueueJob(task="send", args={"order": 1}, priority=99),
            jobs.EnqueueJob(task="send", args={"order": 1}, delay="soon"),
            jobs.EnqueueJob(task="send", args={"order": 1}, unique_key="a\x00b"),
        ),
        command="""enqueue APP send {"order":7} --priority 8 --tag vip --json""",
        rpc=("Jobs", "Enqueue"),
    ),
    "enqueue_copies": Case(
        jobs.EnqueueCopies(task="send", args={"order": 7}, count=3),
        wrong=(jobs.EnqueueCopies(task="send", args={"order": 7}, count=0),),
        command="""enqueue APP send {"order":7} --count 3 --json""",
        items=True,
    ),
    "preview_cancel_jobs": Case(JobFilter(queue="mail"), two_jobs, (JobFilter(state=("lost",)),)),
    "cancel_jobs": Case(
        jobs.JobSelection(ids=[1, 2]),
        two_jobs,
        (
            jobs.JobSelection(),
            jobs.JobSelection(ids=[]),
            jobs.JobSelection(ids=[1, 99]),
            jobs.JobSelection(ids=[1], filter=JobFilter()),
            jobs.JobSelection(filter=JobFilter(state=("lost",))),
        ),
        command="cancel 1 2",
        rpc=("Jobs", "Cancel"),
    ),
    "preview_retry_jobs": Case(JobFilter(state=("cancelled",)), two_jobs, (JobFilter(state=("lost",)),)),
    "retry_jobs": Case(
        jobs.JobSelection(filter=JobFilter(state=("cancelled",), up_to=2)),
        two_jobs,
        (jobs.JobSelection(), jobs.JobSelection(ids=[99])),
        command="retry --state cancelled --yes",
    ),
    # runs, dags, human input
    "list_runs": Case(
        runs.ListRuns(state=("running",), shape="flow"),
        begun_runs,
        (
            runs.ListRuns(limit=0),
            runs.ListRuns(state=("lost",)),
            runs.ListRuns(shape="square"),
            runs.ListRuns(key="~1"),
            runs.ListRuns(parent=0),
            runs.ListRuns(cursor="?"),
        ),
        command="runs --state running --shape flow --json",
        items=True,
        rpc=("Runs", "List"),
    ),
    "start_run": Case(
        runs.StartRun(workflow="order", args={"order": 5}, key="k"),
        wrong=(
            runs.StartRun(workflow="nothing"),
            runs.StartRun(workflow="order", key="~1"),
            runs.StartRun(workflow="order", definition={"name": "other", "nodes": []}),
            runs.StartRun(workflow="order", definition={"nodes": 1}),
        ),
        command="""dag start order --app=APP --args {"order":5} --key k --json""",
        rpc=("Runs", "Start"),
    ),
    "get_run": Case(
        runs.RunRef(id=2),
        begun_runs,
        (runs.RunRef(id=99), runs.RunRef(id=-1)),
        command="run r2",
        rpc=("Runs", "Get"),
    ),
    "get_ticks": Case(
        runs.GetTicks(id=1), begun_runs, (runs.GetTicks(id=99), runs.GetTicks(id=1, limit=0)), command="run r1"
    ),
    "get_run_log": Case(runs.GetRunLog(id=1), begun_runs, (runs.GetRunLog(id=99), runs.GetRunLog(id=1, limit=501))),
    "get_state_at": Case(
        runs.GetStateAt(id=1, at=1),
        begun_runs,
        (runs.GetStateAt(id=99), runs.GetStateAt(id=1, at=9), runs.GetStateAt(id=2, at=9)),
        command="run r1 --at 1 --app=APP",
    ),
    "send_event": Case(
        runs.SendEvent(id=1, type="HumanResponseEvent", fields={"response": "tide"}, step="ask"),
        begun_runs,
        (
            runs.SendEvent(id=99, type="HumanResponseEvent"),
            runs.SendEvent(id=2, type="HumanResponseEvent"),
            runs.SendEvent(id=3, type="HumanResponseEvent"),
        ),
        command="""send r1 HumanResponseEvent {"response":"tide"} --step ask""",
        rpc=("Runs", "SendEvent"),
    ),
    "fork_run": Case(
        runs.ForkRun(id=1, at=1),
        begun_runs,
        (runs.ForkRun(id=99, at=1), runs.ForkRun(id=1, at=9), runs.ForkRun(id=1, at=-1), runs.ForkRun(id=2, at=1)),
        command="fork r1 --at 1 --app=APP",
        rpc=("Runs", "Fork"),
    ),
    "retry_run": Case(
        runs.RunRef(id=1),
        stopped_runs,
        (runs.RunRef(id=99), runs.RunRef(id=2), runs.RunRef(id=3)),
        command="retry r1",
    ),
    "cancel_run": Case(
        runs.CancelRun(id=1),
        begun_runs,
        (runs.CancelRun(id=99), runs.CancelRun(id=3)),
        command="cancel r1",
        rpc=("Runs", "Cancel"),
    ),
    "preview_cancel_runs": Case(RunFilter(workflow="Asking"), begun_runs, (RunFilter(state=("failed",)),)),
    "cancel_runs": Case(
        runs.RunSelection(filter=RunFilter(), reason="enough"),
        begun_runs,
        (
            runs.RunSelection(),
            runs.RunSelection(ids=[]),
            runs.RunSelection(ids=[1, 99]),
            runs.RunSelection(ids=[1], filter=RunFilter()),
            runs.RunSelection(filter=RunFilter(state=("lost",))),
        ),
    ),
    "list_workflows": Case(Nothing()),
    "get_dag_tree": Case(
        dags.GetTree(id=2),
        begun_runs,
        (dags.GetTree(id=99), dags.GetTree(id=1), dags.GetTree(id=2, at=9)),
        command="dag show r2",
    ),
    "rerun_dag": Case(
        dags.RerunDag(id=2, start="pack", edited={"order": 6}),
        a_failed_dag,
        (
            dags.RerunDag(id=99),
            dags.RerunDag(id=1),
            dags.RerunDag(id=2, start="nothing"),
            dags.RerunDag(id=2, edited={"order": 6}),
            dags.RerunDag(id=2, start="pack", edited=[]),
        ),
        command="""dag rerun r2 --from pack --edit {"order":6} --json""",
        rpc=("Runs", "Rerun"),
    ),
    "list_inputs": Case(
        inputs.ListInputs(run=2),
        begun_runs,
        (inputs.ListInputs(limit=0), inputs.ListInputs(run=99), inputs.ListInputs(cursor="?")),
        command="inputs --run r2 --json",
        items=True,
        rpc=("Runs", "ListInputs"),
    ),
    "submit_input": Case(
        inputs.SubmitInput(id=2, node="approve", value={"answer": "yes"}, key="first"),
        begun_runs,
        (
            inputs.SubmitInput(id=99, node="approve", value=1),
            inputs.SubmitInput(id=2, node="approve", value={"answer": "maybe"}),
            inputs.SubmitInput(id=2, node="pack/nothing", value=1),
            inputs.SubmitInput(id=1, node="ask", value={"word": "tide"}),
        ),
    ),
    # queues, workers, hosts
    "list_queues": Case(
        queues.ListQueues(ended_within=3600.0),
        two_jobs,
        (queues.ListQueues(ended_within=-1.0),),
        command="queues --json",
        items=True,
    ),
    "limit_queue": Case(
        queues.LimitQueue(name="mail", rate="30/m"),
        wrong=(
            queues.LimitQueue(name="mail", rate="fast"),
            queues.LimitQueue(name="mail", rate="1/s", burst=0.1),
            queues.LimitQueue(name=" ", rate=None),
        ),
        command="queues limit mail 30/m",
    ),
    "pause_queue": Case(queues.QueueRef(name="mail"), wrong=(queues.QueueRef(name=" "),)),
    "resume_queue": Case(queues.QueueRef(name="mail"), a_paused_queue),
    "list_workers": Case(
        workers.ListWorkers(), a_worker, (workers.ListWorkers(ended_within=-1.0),), command="workers --json", items=True
    ),
    "control_workers": Case(
        workers.ControlWorkers(mode="drain", host="alpha", queue="mail"),
        a_worker,
        (
            workers.ControlWorkers(mode="explode"),  # pyright: ignore[reportArgumentType] - it is wrong
            workers.ControlWorkers(mode="pause", host=""),
            workers.ControlWorkers(mode="pause", queue=" "),
        ),
        command="workers drain alpha mail",
    ),
    "list_hosts": Case(hosts.ListHosts(), wrong=(hosts.ListHosts(within=0.0),)),
    "get_host_samples": Case(hosts.GetHostSamples(name="alpha"), wrong=(hosts.GetHostSamples(name="a", every=0.0),)),
    # schedules
    "list_schedules": Case(Nothing(), the_schedules, command="schedules --json", items=True),
    "run_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        the_schedules,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules run yearly",
    ),
    "pause_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        the_schedules,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules pause yearly",
    ),
    "resume_schedule": Case(
        schedules.ScheduleRef(name="yearly"),
        a_paused_schedule,
        (schedules.ScheduleRef(name="nothing"),),
        command="schedules resume yearly",
    ),
    # administration
    "get_overview": Case(Nothing(), two_jobs),
    "get_throughput": Case(overview.GetThroughput(), wrong=(overview.GetThroughput(every=0.0),)),
    "search": Case(search.Search(q="send"), two_jobs, (search.Search(q=""), search.Search(q="x", limit=99))),
    "list_audit": Case(
        audit.ListAudit(action="job"),
        two_jobs,
        (audit.ListAudit(limit=0), audit.ListAudit(cursor="?")),
        command="audit --action job --json",
        items=True,
    ),
    "list_tokens": Case(Nothing(), a_token, command="token list --json", items=True),
    "create_token": Case(
        tokens.CreateToken(name="ci", scope="read", expires_in="1d"),
        wrong=(
            tokens.CreateToken(name="", scope="read"),
            tokens.CreateToken(name="x", scope="god"),  # pyright: ignore[reportArgumentType] - it is wrong
            tokens.CreateToken(name="x", scope="read", expires_in="-5s"),
        ),
        command="token create ci --scope read --expires 1d",
    ),
    "create_login_link": Case(Nothing(), command="token link"),
    "revoke_token": Case(tokens.TokenRef(id=1), a_token, (tokens.TokenRef(id=9),), command="token revoke 1"),
    "get_retention": Case(Nothing()),
    "set_retention": Case(Retention(jobs=4), wrong=(Retention(jobs=0),)),
    # streams and dead letters
    "list_streams": Case(streams.ListStreams(name="posts"), a_stream, command="stream status posts --json", items=True),
    "control_stream": Case(
        streams.ControlStream(name="posts", source="web", weight=4.0),
        a_stream,
        (
            streams.ControlStream(name="nothing", mode="drain"),
            streams.ControlStream(name="posts"),
            streams.ControlStream(name="posts", enabled=False),
            streams.ControlStream(name="posts", source="post", enabled=False),
            streams.ControlStream(name="posts", source="web", weight=0.0),
            streams.ControlStream(name="posts", source="web", max_qps=-1.0),
            streams.ControlStream(name="posts", mode="stop"),  # pyright: ignore[reportArgumentType] - it is wrong
        ),
        command="stream set-weight posts web 4",
    ),
    "publish_messages": Case(
        streams.PublishMessages(topic="orders", messages=["one", "two"], key="k"),
        wrong=(streams.PublishMessages(topic="orders", messages=[]),),
        command="stream publish orders one two --key k",
    ),
    "list_dead_letters": Case(
        dead_letters.ListDeadLetters(stream="posts", plan="Rank"),
        a_stream,
        (
            dead_letters.ListDeadLetters(limit=0),
            dead_letters.ListDeadLetters(id=(0,)),
            dead_letters.ListDeadLetters(cursor="?"),
            dead_letters.ListDeadLetters(since=datetime(2026, 1, 2)),
            dead_letters.ListDeadLetters(why="bad"),  # pyright: ignore[reportArgumentType] - it is wrong
        ),
        command="stream dead-letters posts --plan Rank --json",
        items=True,
    ),
    "get_dead_letter": Case(
        dead_letters.GetDeadLetter(id=2),
        a_stream,
        (dead_letters.GetDeadLetter(id=99), dead_letters.GetDeadLetter(id=-1)),
    ),
    "preview_replay_dead_letters": Case(
        dead_letters.ReplayDeadLetters(stream="posts"),
        a_stream,
        (dead_letters.ReplayDeadLetters(stream=None, ids=[0]),),
    ),
    "replay_dead_letters": Case(
        dead_letters.ReplayDeadLetters(stream="posts", error="TOO"),
        a_stream,
        (dead_letters.ReplayDeadLetters(stream=None, ids=[0]),),
        command="stream replay posts --error TOO",
    ),
    # monitors, entities, alerts
    "list_monitors": Case(monitors.ListMonitors(), a_monitor, command="monitor status --json", items=True),
    "pause_monitor": Case(
        monitors.MonitorRef(name="ovens"),
        a_monitor,
        (monitors.MonitorRef(name="nothing"),),
        command="monitor pause",
    ),
    "resume_monitor": Case(
        monitors.MonitorRef(name="ovens"),
        a_monitor,
        (monitors.MonitorRef(name="nothing"),),
        command="monitor resume --monitor ovens",
    ),
    "switch_trigger": Case(
        monitors.SwitchTrigger(name="ovens", trigger="hot", wanted="off"),
        a_monitor,
        (
            monitors.SwitchTrigger(name="nothing", trigger="hot", wanted="off"),
            monitors.SwitchTrigger(name="ovens", trigger="cold", wanted="off"),
            monitors.SwitchTrigger(name="ovens", trigger="hot", wanted="no"),  # pyright: ignore[reportArgumentType]
        ),
        command="monitor trigger hot off",
    ),
    "list_monitor_events": Case(
        monitors.ListMonitorEvents(name="ovens", entity="a", tick=27),
        a_monitor,
        (monitors.ListMonitorEvents(name="nothing"), monitors.ListMonitorEvents(name="ovens", limit=0)),
        command="monitor tail --entity a",
    ),
    "backtest_monitor": Case(
        backtests.BacktestMonitor(name="ovens", since=SPAN[0], until=SPAN[1]),
        a_monitor,
        (
            backtests.BacktestMonitor(name="nothing"),
            backtests.BacktestMonitor(name="ovens", last="0s"),
            backtests.BacktestMonitor(name="ovens", last="99d"),
            backtests.BacktestMonitor(name="ovens", triggers=["cold"]),
            backtests.BacktestMonitor(name="ovens", timeout=0.0),
            backtests.BacktestMonitor(name="ovens", since=SPAN[0].replace(tzinfo=None)),
        ),
        command="monitor backtest APP --since 2023-11-14 --until 2023-11-16 --json",
    ),
    "list_entities": Case(
        roster.ListEntities(name="ovens"),
        a_monitor,
        (roster.ListEntities(name="ovens", within=1.0), roster.ListEntities(name="ovens", cursor="?")),
    ),
    "list_roster": Case(
        roster.ListRoster(name="ovens"),
        a_monitor,
        (roster.ListRoster(name="nothing"), roster.ListRoster(name="ovens", cursor="?")),
        command="monitor roster list --json",
        items=True,
    ),
    "change_roster": Case(
        roster.ChangeRoster(name="ovens", add=["c"]),
        a_monitor,
        (
            roster.ChangeRoster(name="ovens"),
            roster.ChangeRoster(name="nothing", add=["c"]),
            roster.ChangeRoster(name="ovens", add=["c"], past="soon"),
            roster.ChangeRoster(name="ovens", remove=["a\nb"]),
        ),
        command="monitor roster add c",
    ),
    "label_entity": Case(
        roster.LabelEntity(name="ovens", entity="a", labels={"present": False, "room": "12"}),
        a_monitor,
        (
            roster.LabelEntity(name="ovens", entity="a", labels={}),
            roster.LabelEntity(name="ovens", entity="z", labels={"room": 1}),
            roster.LabelEntity(name="ovens", entity="a", labels={"room": [1]}),  # pyright: ignore[reportArgumentType]
        ),
        command="monitor roster label a present=false room=12",
    ),
    "backfill_monitor": Case(
        roster.BackfillMonitor(name="ovens", entities=["a"], past="1h"),
        a_monitor,
        (
            roster.BackfillMonitor(name="ovens", entities=["z"]),
            roster.BackfillMonitor(name="ovens", past="long"),
            roster.BackfillMonitor(name="nothing"),
        ),
        command="monitor backfill a --past 1h",
    ),
    "reset_monitor": Case(
        roster.ResetMonitor(name="ovens"), a_monitor, (roster.ResetMonitor(name="nothing"),), command="monitor reset"
    ),
    "list_alerts": Case(
        alerts.ListAlerts(trigger="hot"),
        a_monitor,
        (alerts.ListAlerts(limit=0), alerts.ListAlerts(cursor="?")),
        command="monitor alerts --trigger hot --all --json",
        items=True,
    ),
    "get_alert": Case(
        alerts.GetAlert(id=1),
        a_monitor,
        (alerts.GetAlert(id=99), alerts.GetAlert(id=-1)),
    ),
    "preview_ack_alerts": Case(Unseen(trigger="hot"), a_monitor),
    "ack_alerts": Case(
        alerts.AckAlerts(ids=[1], note="seen"),
        a_monitor,
        (
            alerts.AckAlerts(),
            alerts.AckAlerts(ids=[]),
            alerts.AckAlerts(ids=[1], filter=Unseen()),
            alerts.AckAlerts(ids=[1, 99]),
            alerts.AckAlerts(ids=[-1]),
        ),
        command="monitor ack 1 --note seen",
    ),
    "note_alert": Case(
        alerts.NoteAlert(id=1, note="seen", owner="ann"),
        a_monitor,
        (alerts.NoteAlert(id=1), alerts.NoteAlert(id=99, note="x")),
        command="monitor note 1 seen --owner ann",
    ),
    "silence_alerts": Case(
        alerts.SilenceAlerts(name="ovens", matchers={"trigger": "hot"}, lasts="10m"),
        a_monitor,
        (
            alerts.SilenceAlerts(name="ovens", matchers={}),
            alerts.SilenceAlerts(name="ovens", matchers={"colour": "red"}),
            alerts.SilenceAlerts(name="ovens", matchers={"trigger": "hot"}, lasts="soon"),
        ),
        command="monitor silence trigger=hot --until 10m",
    ),
    "list_silences": Case(alerts.ListSilences(monitor="ovens"), a_silence, command="monitor silence"),
    "end_silence": Case(
        alerts.SilenceRef(id=1),
        a_silence,
        (alerts.SilenceRef(id=9), alerts.SilenceRef(id=-1)),
        command="monitor silence --end 1",
    ),
}
