"""Work of all shapes, in several processes of which one is killed, is one trace from the request to the alert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.all_shapes import ROOT, stage
from tidemill import App
from tidemill.engine.telemetry.tracing import continuing

TRACED = ROOT / "tests" / "support" / "all_shapes" / "traced.py"
TRACE, REQUEST = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def spans_in(folder: Path) -> list[dict[str, Any]]:
    """The spans that all processes have written, oldest first."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda span: span["start_time"])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_request_job_run_step_child_message_and_alert_are_one_trace_across_processes_and_a_crash(
    database_url: str, tmp_path: Path
) -> None:
    spans = tmp_path / "spans"
    spans.mkdir()
    with stage(database_url, tmp_path) as on:
        up = on.up("up", app=TRACED, TRACED_SPANS=str(spans), TIDEMILL_LOG_FORMAT="json")
        await up.says("monitors started")
        async with App("traced", database_url=database_url) as client:
            task = client.task(name="begin")(_declared)
            with continuing(f"00-{TRACE}-{REQUEST}-01"):
                job = await client.enqueue(task.call(number=7))
        found = await eventually(
            lambda: any(span["name"] == "alert stored.seen" for span in spans_in(spans)) and spans_in(spans),
            what="the alert has a span",
        )
        of_trace = [span for span in found if span["context"]["trace_id"] == f"0x{TRACE}"]
        names = [span["name"] for span in of_trace]
        chain = ["run begin", "start Chain", "step Chain.split", "step Leaf.tell"]
        chain += ["message readings/readings", "run store", "alert stored.seen"]
        for name in chain:
            assert names.count(name) == 1, f"{name} in {names}"
        assert names.count("claim begin") == 2, "the first worker was killed"
        ids = {span["context"]["span_id"] for span in of_trace} | {f"0x{REQUEST}"}
        assert {span["parent_id"] for span in of_trace} <= ids, "every span is below another of the trace"
        by_name = {span["name"]: span for span in reversed(of_trace)}
        halves = [span["context"]["span_id"] for span in of_trace if span["name"] == "step Chain.halve"]
        assert sorted(link["context"]["span_id"] for link in by_name["step Chain.join"]["links"]) == sorted(halves)
        (told,) = (json.loads(line) for line in up.said.splitlines() if '"told"' in line)
        assert told["trace_id"] == TRACE
        assert f"0x{told['span_id']}" == by_name["step Leaf.tell"]["context"]["span_id"]

        def explained(id: str) -> Any:
            shown = on.command("explain", id, "--forward", "--json", "--application", "traced")
            assert shown.returncode == 0, shown.stderr
            return json.loads(shown.stdout)

        followed = {each["id"]: each for each in explained(str(job.id))["followed"]}
        (run,) = (id for id in followed if id.startswith("r"))
        assert explained(run)["run"]["origin"]["parent"] == job.id
        assert "number 7" in json.dumps(explained("a1"))


async def _declared(number: int) -> int:
    return number
