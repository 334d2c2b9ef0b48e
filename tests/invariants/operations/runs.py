"""Cases for the operations on runs, dags and human input, and for `explain`."""

from __future__ import annotations

from msgspec import Raw

from tests.invariants.operations.case import Case, World
from tidemill.core.ticks import Completed, Started
from tidemill.dags.reducer.events import NodeEnded, NodeFailure
from tidemill.dags.reducer.journal import encode_tick as encode_dag_tick
from tidemill.flows import StartEvent
from tidemill.flows.encoding.journal import encode_tick
from tidemill.ops.explain import ExplainObject
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.runs import cancel, dags, events, inputs, journal, migrate, runs, start
from tidemill.store.jobs.pages import RunFilter


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
    await store_ticks(world, 1, started)
    await store_ticks(world, 2, encode_dag_tick(Started(1000.0, {"order": 5})), encode_dag_tick(packed))
    await world.database.fetch("INSERT INTO tidemill.run_input (run_id, node, prompt) VALUES (2, 'approve', 'Really?')")
    await world.database.fetch("UPDATE tidemill.run SET state = 'cancelled', ended_at = now() WHERE id = 3")


async def stopped_runs(world: World) -> None:
    """As `begun_runs`, but run 1 needs attention."""
    await begun_runs(world)
    await world.database.fetch("UPDATE tidemill.run SET state = 'needs_attention', note = 'lost' WHERE id = 1")


async def an_older_run(world: World) -> None:
    """As `begun_runs`, but another version of its workflow has begun run 1."""
    await begun_runs(world)
    await world.database.fetch("UPDATE tidemill.run SET version = 'older' WHERE id = 1")


async def a_failed_dag(world: World) -> None:
    """Run 2 is of a dag, and its first node has failed."""
    await two_runs(world)
    failed = Completed(1001.0, 1, NodeEnded("failed", 1, error=NodeFailure("ValueError", "no such order")))
    await store_ticks(world, 2, encode_dag_tick(Started(1000.0, {"order": 5})), encode_dag_tick(failed))
    await world.database.fetch("UPDATE tidemill.run SET state = 'failed', ended_at = now() WHERE id = 2")


async def store_ticks(world: World, run: int, *ticks: bytes) -> None:
    """Store ticks as a run worker would, which then lets the run sleep."""
    for seq, tick in enumerate(ticks, 1):
        await world.database.fetch("INSERT INTO tidemill.tick (run_id, seq, data) VALUES ($1, $2, $3)", run, seq, tick)
    await world.database.fetch("UPDATE tidemill.run SET seq = $2, awake = false WHERE id = $1", run, len(ticks))


CASES: dict[str, Case] = {
    "explain": Case(
        ExplainObject(id="r2", forward=True),
        begun_runs,
        tuple(ExplainObject(id=id) for id in ("99", "r99", "a99", "d99", "r2/none", "none", "9" * 30)),
        command="explain r2 --forward --json",
    ),
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
    ),
    "start_run": Case(
        runs.StartRun(workflow="order", args={"order": 5}, unique_key="k"),
        wrong=(
            runs.StartRun(workflow="nothing"),
            runs.StartRun(workflow="order", unique_key="~1"),
            runs.StartRun(workflow="order", args={"order": 5}, delay="soon"),
            runs.StartRun(workflow="order", definition={"name": "other", "nodes": []}),
            runs.StartRun(workflow="order", definition={"nodes": 1}),
        ),
        command="""dag start order --app=APP --args {"order":5} --unique-key k --json""",
    ),
    "start_work": Case(
        start.StartWork(name="order", args={"order": 5}, unique_key="k", delay="1h", tags=["a"]),
        wrong=(
            start.StartWork(name="nothing"),
            start.StartWork(name="ordr"),
            start.StartWork(name="order", args={"order": 5}, delay="soon"),
            start.StartWork(name="order", args={"ordr": 5}),
        ),
        command="""start order {"order":5} --app=APP --unique-key k --delay 1h --tag a --json""",
    ),
    "get_run": Case(
        runs.RunRef(id=2),
        begun_runs,
        (runs.RunRef(id=99), runs.RunRef(id=-1)),
        command="run r2",
    ),
    "get_ticks": Case(
        journal.GetTicks(id=1), begun_runs, (journal.GetTicks(id=99), journal.GetTicks(id=1, limit=0)), command="run r1"
    ),
    "get_run_log": Case(
        journal.GetRunLog(id=1), begun_runs, (journal.GetRunLog(id=99), journal.GetRunLog(id=1, limit=501))
    ),
    "get_state_at": Case(
        journal.GetStateAt(id=1, at=1),
        begun_runs,
        (journal.GetStateAt(id=99), journal.GetStateAt(id=1, at=9), journal.GetStateAt(id=2, at=9)),
        command="run r1 --at 1 --app=APP",
    ),
    "send_event": Case(
        events.SendEvent(id=1, type="HumanResponseEvent", fields={"response": "tide"}, step="ask"),
        begun_runs,
        (
            events.SendEvent(id=99, type="HumanResponseEvent"),
            events.SendEvent(id=2, type="HumanResponseEvent"),
            events.SendEvent(id=3, type="HumanResponseEvent"),
        ),
        command="""send r1 HumanResponseEvent {"response":"tide"} --step ask""",
    ),
    "fork_run": Case(
        events.ForkRun(id=1, at=1),
        begun_runs,
        (
            events.ForkRun(id=99, at=1),
            events.ForkRun(id=1, at=9),
            events.ForkRun(id=1, at=-1),
            events.ForkRun(id=2, at=1),
        ),
        command="fork r1 --at 1 --app=APP",
    ),
    "retry_run": Case(
        runs.RunRef(id=1),
        stopped_runs,
        (runs.RunRef(id=99), runs.RunRef(id=2), runs.RunRef(id=3)),
        command="retry r1",
    ),
    "cancel_run": Case(
        cancel.CancelRun(id=1),
        begun_runs,
        (cancel.CancelRun(id=99), cancel.CancelRun(id=3)),
        command="cancel r1",
    ),
    "preview_cancel_runs": Case(RunFilter(workflow="Asking"), begun_runs, (RunFilter(state=("failed",)),)),
    "cancel_runs": Case(
        cancel.RunSelection(filter=RunFilter(), reason="enough"),
        begun_runs,
        (
            cancel.RunSelection(),
            cancel.RunSelection(ids=[]),
            cancel.RunSelection(ids=[1, 99]),
            cancel.RunSelection(ids=[1], filter=RunFilter()),
            cancel.RunSelection(filter=RunFilter(state=("lost",))),
        ),
    ),
    "list_versions": Case(migrate.ListVersions(workflow="Asking"), an_older_run),
    "migrate_runs": Case(
        migrate.MigrateRuns(flow="Asking"),
        an_older_run,
        (migrate.MigrateRuns(flow="nothing"),),
        command="runs migrate --flow Asking --app=APP --json",
    ),
    "list_workflows": Case(Nothing()),
    "list_startable": Case(Nothing()),
    "get_dag_tree": Case(
        dags.GetTree(id=2),
        begun_runs,
        (dags.GetTree(id=99), dags.GetTree(id=1), dags.GetTree(id=2, at=9)),
        command="run r2",
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
    ),
    "cancel_node": Case(
        dags.CancelNode(id=2, node="approve", reason="enough"),
        begun_runs,
        (
            dags.CancelNode(id=99, node="approve"),
            dags.CancelNode(id=1, node="approve"),
            dags.CancelNode(id=2, node="nothing"),
            dags.CancelNode(id=2, node="pack"),
        ),
        command="dag cancel-node r2 approve --reason enough --json",
    ),
    "list_inputs": Case(
        inputs.ListInputs(run=2),
        begun_runs,
        (inputs.ListInputs(limit=0), inputs.ListInputs(run=99), inputs.ListInputs(cursor="?")),
        command="inputs --run r2 --json",
        items=True,
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
}
