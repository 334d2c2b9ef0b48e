"""Dags: the declared ones and the declared flows, runs of dags as trees of nodes, and runs that repeat others."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.dags.definition.model import UNSET
from tidemill.dags.runner.cancel_node import cancel_node as ask_to_cancel_node
from tidemill.dags.runner.rerun import rerun_input
from tidemill.dags.view.load import load_state, load_view, load_view_at
from tidemill.dags.view.view import NodeView, nodes_of, why_run
from tidemill.declarations import Declarations
from tidemill.ops.operator.operation import ListOf, Nothing, doc, operation
from tidemill.ops.operator.task_roles import check_tasks, tasks_in
from tidemill.ops.runs.runs import RunRef, RunStarted, dag_kind, find_run
from tidemill.store.large_values import SHOWN_BYTES, VALUES, cut_value
from tidemill.store.runs.runs import repeated, store_run
from tidemill.store.transaction import Reader, Transaction

MOST_JOBS = 200


class GetTree(RunRef, frozen=True, kw_only=True):
    """Which run of a dag, and when."""

    at: Annotated[int | None, doc("Show it as it was after this tick.")] = None


class RerunDag(RunRef, frozen=True, kw_only=True):
    """Which run to repeat, and what of it."""

    start: Annotated[str | None, doc("Do this node again too, and everything that follows from it.")] = None
    edited: Annotated[Any, doc("Other arguments for this node, or the answer to its question.")] = msgspec.UNSET


class CancelNode(RunRef, frozen=True, kw_only=True):
    """Which node of a dag's run to cancel, and why."""

    node: Annotated[str, doc("The node; all that follows from it is cancelled too.")]
    reason: Annotated[str | None, doc("Why, for the notes of the nodes.")] = None


class NodesCancelled(msgspec.Struct, frozen=True):
    """The nodes that are cancelled."""

    nodes: list[str]


class FlowNode(msgspec.Struct, frozen=True):
    """A step of a flow, an event that goes between steps, or the world outside."""

    name: str
    label: str
    kind: str


class FlowGraph(msgspec.Struct, frozen=True):
    """All ways that events can take through a flow; an edge is a pair of nodes."""

    nodes: list[FlowNode]
    edges: list[tuple[str, str]]


class DeclaredWorkflow(msgspec.Struct, frozen=True):
    """A dag or flow that the application declares; of a dag its definition, of a flow its graph."""

    name: str
    shape: str
    definition: Annotated[Any, doc("Of a dag.")] = None
    graph: Annotated[FlowGraph | None, doc("Of a flow.")] = None


class DagTree(msgspec.Struct, frozen=True):
    """A run of a dag at one time: every node, why it is in its state, and how many run workers could drive it."""

    run_id: int
    state: str
    definition: Any
    nodes: list[NodeView]
    why: list[str]
    at: datetime
    run_workers: Annotated[int, doc("How many run workers could drive it.")]
    tick: Annotated[int | None, doc("The tick after which it is shown; null if it is shown as it is now.")] = None


@operation("GET /workflows", role="viewer")
async def list_workflows(at: Reader, args: Nothing, declared: Declarations) -> ListOf[DeclaredWorkflow]:
    """List the flows and dags that can be started by name: `POST /runs`."""
    flows = [DeclaredWorkflow(name, "flow", graph=_graph(kind.workflow)) for name, kind in declared.runs.flows.items()]
    dags = [DeclaredWorkflow(name, "dag", decode(dag.to_json())) for name, dag in declared.runs.dags.items()]
    return ListOf(flows + dags)


@operation("GET /runs/{id}/tree", role="viewer")
async def get_dag_tree(at: Reader, args: GetTree, declared: Declarations | None) -> DagTree:
    """Every node of a dag's run with its state, progress and why; with `at`, as it was after that tick."""
    await find_run(at, args.id)
    kind = dag_kind(declared)
    if args.at is None:
        view = await load_view(at.database, kind, args.id, jobs=MOST_JOBS)
    else:
        view = await load_view_at(at.database, kind, args.id, args.at)
    shown, given = datetime.fromtimestamp(view.now, UTC), decode(view.row["input"])
    return DagTree(
        args.id,
        view.run_state,
        _cut_definition(given["dag"], args.id),
        nodes_of(view),
        why_run(view),
        shown,
        view.run_workers,
        view.tick,
    )


@operation("POST /runs/{id}/rerun", role="operator", status=201)
async def rerun_dag(tx: Transaction, args: RerunDag, declared: Declarations | None) -> RunStarted:
    """Start a new run that does again what did not succeed in a dag's run."""
    await find_run(tx, args.id)
    edited = UNSET if args.edited is msgspec.UNSET else args.edited
    row, program, state = await load_state(tx.database, dag_kind(declared), args.id)
    if edited is not UNSET and declared is not None:
        check_tasks(tx, declared, tasks_in(decode(row["input"])["dag"]))
    given = rerun_input(row["input"], program, state, start=args.start, edited=edited)
    new = repeated(row, input=given, origin=encode({"by": tx.by, "repeats": args.id}))
    number, created = await store_run(tx, new)
    after = {"run": number, "start": args.start, "edited": edited is not UNSET}
    await tx.audit("run.rerun", f"r{args.id}", after=after)
    return RunStarted(number, created)


@operation("POST /runs/{id}/cancel_node", role="operator", status=202)
async def cancel_node(tx: Transaction, args: CancelNode, declared: Declarations | None) -> NodesCancelled:
    """Cancel a node of a dag's run with all that follows from it; the other nodes go on."""
    await find_run(tx, args.id)
    _, program, state = await load_state(tx.database, dag_kind(declared), args.id)
    return NodesCancelled(await ask_to_cancel_node(tx, args.id, program, state, args.node, reason=args.reason))


def _cut_definition(definition: Any, run_id: int) -> Any:
    """The definition with the beginning of arguments and other values that are too large for an answer."""
    if len(encode(definition)) <= SHOWN_BYTES:
        return definition
    whole = f"{VALUES}/run/input/{run_id}"

    def cut(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() & {"nodes", "args"}:
            return {
                name: cut(each) if name in ("nodes", "args") else cut_value(each, whole) for name, each in value.items()
            }
        if isinstance(value, list) and all(isinstance(each, dict) for each in value):
            return [cut(each) for each in value]
        return {name: cut_value(each, whole) for name, each in value.items()} if isinstance(value, dict) else value

    return cut(definition)


def _graph(workflow: Any) -> FlowGraph:
    from tidemill.flows.view.representation import get_workflow_representation

    found = get_workflow_representation(workflow)
    nodes = [
        FlowNode(node.id, node.label, node.node_type)
        for node in found.nodes
        if not node.node_type.startswith("resource")
    ]
    known = {node.name for node in nodes}
    edges = [(edge.source, edge.target) for edge in found.edges if {edge.source, edge.target} <= known]
    return FlowGraph(nodes, edges)
