"""What the nodes of workflow files do, by what they reach: values, HTTP, commands, databases, models and people."""

from tidemill.pipelines.workflows.node_types import (
    commands,
    http,
    language_models,
    messages,
    postgres,
    questions,
    values,
)

__all__ = ["commands", "http", "language_models", "messages", "postgres", "questions", "values"]
