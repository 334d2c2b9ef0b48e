"""Dags: those that the application declares, their runs as trees, and runs that repeat others."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, JSONBody

from tidemill.core.codec import decode
from tidemill.dags.definition.model import UNSET
from tidemill.dags.view.view import nodes_json, why_run
from tidemill.flows.view.representation import get_workflow_representation
from tidemill.server.resources.runs import Started, look, look_back, repeat_run
from tidemill.server.server_state import TheServerState, caller_of


class FlowNode(msgspec.Struct, frozen=True):
    """A step of a flow, an event that goes between steps, or the world outside."""

    name: str
    label: str
    kind: str


class FlowGraph(msgspec.Struct, frozen=True):
    """All ways that events can take through a flow; an edge is a pair of nodes."""

    nodes: list[FlowNode]
    edges: list[tuple[str, str]]


class Declared(msgspec.Struct, frozen=True):
    """A dag or flow that the application declares; of a dag its definition, of a flow its graph."""

    name: str
    shape: str
    definition: Any = None
    graph: FlowGraph | None = None


class DeclaredList(msgspec.Struct, frozen=True):
    items: list[Declared]


class NodeJob(msgspec.Struct, frozen=True):
    """An unfinished job of a node."""

    id: int
    state: str
    queue: str
    attempt: int
    progress: float | None
    note: str | None


class Node(msgspec.Struct, frozen=True):
    """A node of a run: `done` of `total` counts the items or nodes inside of one."""

    node: str
    state: str
    done: int | None
    total: int | None
    began: datetime | None
    ended: datetime | None
    note: str
    why: str
    carried: bool
    jobs: list[NodeJob]


class Tree(msgspec.Struct, frozen=True):
    """A run of a dag: every node, and where the run stands."""

    run_id: int
    state: str
    definition: Any
    nodes: list[Node]
    why: list[str]
    tick: int | None = None
    """The tick after which it is shown, if not as it is now."""


class Again(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Do again what did not succeed; with `start` that node too and all that follows, with `edited` other arguments."""

    start: str | None = None
    edited: Any = msgspec.UNSET


@get("/workflows", opt={"scope": "read"}, summary="Declared flows and dags")
async def get_workflows(server_state: TheServerState) -> DeclaredList:
    """What can be started by name: `POST /runs`."""
    flows = [Declared(name, "flow", graph=_graph(kind.workflow)) for name, kind in server_state.app.runs.flows.items()]
    dags = [Declared(name, "dag", decode(dag.to_json())) for name, dag in server_state.app.runs.dags.items()]
    return DeclaredList(flows + dags)


@get("/runs/{run_id:int}/tree", opt={"scope": "read"}, summary="The nodes of a dag's run")
async def get_tree(server_state: TheServerState, run_id: FromPath[int], at: FromQuery[int | None] = None) -> Tree:
    """Every node with its state, progress and why; with `at`, as it was after that tick."""
    view = await (look(server_state, run_id) if at is None else look_back(server_state, run_id, at))
    nodes = msgspec.convert(nodes_json(view), list[Node])
    given = decode(view.row["input"])
    return Tree(run_id, view.run_state, given["dag"], nodes, why_run(view), view.tick)


@post("/runs/{run_id:int}/rerun", opt={"scope": "operate"}, status_code=201, summary="Repeat a dag's run")
async def rerun(
    server_state: TheServerState, request: Request[Any, Any, Any], run_id: FromPath[int], data: JSONBody[Again]
) -> Started:
    """A new run that does again what did not succeed in this one."""
    edited = UNSET if data.edited is msgspec.UNSET else data.edited
    return await repeat_run(server_state, caller_of(request), run_id, data.start, edited)


routes = [get_workflows, get_tree, rerun]


def _graph(workflow: Any) -> FlowGraph:
    found = get_workflow_representation(workflow)
    nodes = [
        FlowNode(node.id, node.label, node.node_type)
        for node in found.nodes
        if not node.node_type.startswith("resource")
    ]
    known = {node.name for node in nodes}
    edges = [(edge.source, edge.target) for edge in found.edges if {edge.source, edge.target} <= known]
    return FlowGraph(nodes, edges)
