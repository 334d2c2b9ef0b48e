"""Pipelines and workflows from JSON files."""

from tidemill.pipelines.workflows.load import load_workflow, parse_workflow
from tidemill.pipelines.workflows.nodes import node_type, transform
from tidemill.pipelines.workflows.read import Loaded, TriggerWorkflow

__all__ = ["Loaded", "TriggerWorkflow", "load_workflow", "node_type", "parse_workflow", "transform"]
