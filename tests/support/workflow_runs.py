"""Workflow files as other products write them, and their runs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

from tests.support.receiver import Request, receiver
from tidemill.engine.outbound_http import allowing_hosts
from tidemill.engine.secrets.credentials import credentials_from
from tidemill.pipelines.workflows import parse_workflow


def node(id: str, type: str, **data: Any) -> dict[str, Any]:
    return {"id": id, "typeId": type, "name": id, "position": {"x": 1, "y": 2}, "data": data}


def chain(*nodes: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Nodes one after the other."""
    links = [
        {"id": f"c{at}", "sourceNodeId": one["id"], "sourceConnectorId": "output", "targetNodeId": two["id"],
         "targetConnectorId": "input"}
        for at, (one, two) in enumerate(pairwise(nodes))
    ]  # fmt: skip
    return {"nodes": list(nodes), "connections": links, **more}


def staged(*stages: dict[str, Any]) -> dict[str, Any]:
    return {"name": "staged", "mode": "pipeline", "stateRoot": "states", "stages": list(stages)}


def run(*nodes: dict[str, Any], payload: Any = None) -> dict[str, Any]:
    """What each of these nodes, one after the other, returned."""
    return run_file(chain(*nodes), payload)


def run_file(data: dict[str, Any], payload: Any = None) -> dict[str, Any]:
    """What each node of a workflow returned."""
    (workflow,) = parse_workflow(data, "f").triggers
    return asyncio.run(workflow.run(payload))


def keep_credentials(**known: dict[str, str]) -> None:
    async def read(names: Any) -> dict[str, dict[str, str]]:
        return {name: known[name] for name in names if name in known}

    credentials_from(read)


@contextmanager
def asked(answer: Any = (200, b'{"ok": true}')) -> Iterator[tuple[str, list[Request]]]:
    """A local server that keeps its requests."""
    found: list[Request] = []

    def reply(request: Request) -> Any:
        found.append(request)
        return answer(request) if callable(answer) else answer

    with receiver(reply) as server, allowing_hosts([server.url.removeprefix("http://")]):
        yield server.url, found
