"""Dags: nodes in dependency order, each a job on any host, with people in the loop.

from tidemill.dags import Dag, node, ref, input_node, sub_dag
"""

from tidemill.core.refs import Refs, ref
from tidemill.dags.definition.files import load_dag, parse_dag
from tidemill.dags.definition.model import Dag, InputNode, Node, SubDag, TaskNode, input_node, node, sub_dag
from tidemill.dags.errors import DagError

__all__ = [
    "Dag",
    "DagError",
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
