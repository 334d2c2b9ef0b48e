"""What docs/dags.md takes for granted: a file of a dag, a program's own nodes, tenants and models."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support.guide import ROOT
from tests.support.waiting import eventually
from tidemill import App, ModelSpec
from tidemill.dags import Dag, Refs, input_node, node, parse_dag, ref

__all__ = ["ModelSpec", "Refs", "node", "parse_dag", "ref"]


async def prepare(names: dict[str, Any]) -> None:
    """The page's own file."""
    page = (ROOT / "docs" / "dags.md").read_text()
    found = re.search(r"```yaml\n(name: nightly.*?)```", page, re.DOTALL)
    assert found is not None
    Path("nightly.yaml").write_text(found[1])


async def waits_for_a_person(names: dict[str, Any]) -> None:
    """A run whose question is open."""
    app: App = names["app"]
    dag = app.dag(Dag("asking", nodes=[input_node("approve", prompt="Load?", timeout="1h")]))
    handle = await app.start(dag)
    async with app.running():
        await eventually(handle.inputs, what="the run asks")
    names["handle"] = await app.runs.get(handle.id)


async def say_yes(names: dict[str, Any]) -> None:
    """A person answers the first run that asks."""
    await eventually(lambda: "handle" in names, what="the run is started")
    await eventually(names["handle"].inputs, what="the run asks")
    await names["handle"].submit("approve", {"answer": "yes"}, by="ann@example.org")


BEFORE = {"Wait for people": waits_for_a_person}
DURING = {"Declare one and run it": say_yes}


class our_table:
    @staticmethod
    async def definition(name: str) -> str | None:
        return f"name: {name}\nnodes:\n  - {{name: ask, prompt: 'Hello {{{{$.run.name}}}}?'}}\n"


def count_letters(text: str) -> dict[str, int]:
    return {"letters": len(text)}


@asynccontextmanager
async def tenant_of(run: int) -> AsyncIterator[Any]:
    yield SimpleNamespace(name=f"tenant of {run}")


def load_minilm() -> object:
    return object()
