"""Dags: nodes that run as jobs in dependency order, on any host, with human input.

from tidemill.dags import Dag, node, ref, input_node, sub_dag
"""

from tidemill.core.expressions.refs import Refs, ref
from tidemill.dags.definition.files import load_dag, parse_dag
from tidemill.dags.definition.model import Dag, InputNode, Node, SubDag, TaskNode, input_node, node, sub_dag
from tidemill.dags.errors import DagError
from tidemill.dags.runner.dag_handle import DagHandle

__all__ = [
    "Dag",
    "DagError",
    "DagHandle",
    "InputNode",
    "Node",
    "Refs",
    "SubDag",
    "TaskNode",
    "input_node",
    "load_dag",
    "node",
    "parse_dag",
    "ref",
    "sub_dag",
]
