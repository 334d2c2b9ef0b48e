"""A run as it is told: in the same words whether the database or a server tells it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.cli.render import read_json
from tidemill.core.errors import ConfigError
from tidemill.store.runs.runs import OWN_KEY

JSON_COLUMNS = ("input", "result", "error", "origin")
INNER = ("owner", "turn", "awake", "kind", "parent_work")


def run_number(id: str) -> int:
    """The number of a run from how people write it: r12, or 12."""
    text = id.removeprefix("r")
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"{id!r} is not a run: write it as `tidemill runs` shows it, such as r12")
    return int(text)


def told_run(row: Mapping[str, Any], why: Sequence[str]) -> dict[str, Any]:
    """A run from its row."""
    from tidemill.dags.runner.runner import (
        DAG_KIND,  # Here, for they take a while, and what a server tells needs neither.
    )
    from tidemill.flows.encoding.values import plain_result

    is_dag = row["kind"] == DAG_KIND
    told = {
        name: read_json(value) if name in JSON_COLUMNS else value for name, value in row.items() if name not in INNER
    }
    told["shape"] = "dag" if is_dag else "flow"
    told["key"] = None if (row["key"] or OWN_KEY).startswith(OWN_KEY) else row["key"]
    if is_dag:
        told["input"] = told["input"].get("args", {})
    else:
        told["result"] = plain_result(told["result"])
    return {**told, "why": list(why)}


def served_run(row: dict[str, Any]) -> dict[str, Any]:
    """A run as a server tells it, of a list or by itself."""
    return {("seq" if name == "ticks" else name): value for name, value in row.items()}
