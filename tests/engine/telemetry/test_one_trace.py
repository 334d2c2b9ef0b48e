"""Work of all shapes, in processes that are killed and replaced, is one trace from the request to the alert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import eventually
from tests.support.all_shapes import ROOT, Stage, stage
from tests.support.ports import free_port

TRACED = ROOT / "tests" / "support" / "all_shapes" / "traced.py"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

#: The spans that there is one of, from the request to the alert.
CHAIN = [
    "POST", "enqueue begin", "run begin", "start Chain", "step Chain.split", "step Leaf.tell",
    "message readings/readings", "run store", "build papers/both", "build papers/told", "alert stored.seen",
]  # fmt: skip


def spans_in(folder: Path) -> list[dict[str, Any]]:
    """The spans that all processes have written, oldest first."""
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda span: span["start_time"])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_request_job_run_step_child_message_state_and_alert_are_one_trace_that_explain_follows_back(
    database_url: str, tmp_path: Path
) -> None:
    spans, port = tmp_path / "spans", free_port()
    spans.mkdir()
    environment: Any = {"TRACED_SPANS": str(spans), "TIDEMILL_LOG_FORMAT": "json"}
    with stage(database_url, tmp_path) as on:
        first = on.up("first", app=TRACED, port=port, **environment)
        for event in ("monitors started", "worker started", "serving http"):
            await first.says(event)
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as http:
            asked = await http.post(
                "/jobs",
                json={"task": "begin", "args": {"number": 7}},
                headers={"traceparent": f"00-{TRACE}-{CALLER}-01"},
            )
        assert asked.status_code == 201, asked.text
        job = asked.json()["id"]
        await first.says('"joined"')
        (run,) = (each["id"] for each in _explained(on, str(job), environment)["followed"])
        assert await first.stop() == 0
        second = on.up("second", app=TRACED, **environment)  # Until then nothing runs at all.
        sent = on.command("send", run, "traced.Go", "{}", "--app", str(TRACED), **environment)
        assert sent.returncode == 0, sent.stderr
        found = await eventually(
            lambda: any(span["name"] == "alert stored.seen" for span in spans_in(spans)) and spans_in(spans),
            what="the alert has a span",
        )
        _check_spans([span for span in found if span["context"]["trace_id"] == f"0x{TRACE}"])
        _check_log_lines(second.said, found)
        alert, *rest = _explained(on, "a1", environment)["because"]
        assert alert["what"] == "event n7 of monitor stored"
        ids, what = [each["id"] for each in rest], [each["what"] for each in rest]
        assert ids[:2] == ["papers/told/7", ""]
        assert what[1] == "file stored/7.txt of pipeline papers"
        assert what[2:] == [
            "job store", "message", "run Leaf", "run Chain", "job begin", "request POST /api/v1/jobs by local",
        ]  # fmt: skip
        assert ids[5:] == [run, str(job), ""]
        for at, id in enumerate(ids):
            if id:  # Every step back is explained by itself, and leads the same way.
                assert _explained(on, id, environment)["because"] == rest[at + 1 :], id
        forward = [_explained(on, id, environment)["followed"] for id in (str(job), run, ids[4], ids[3])]
        assert [[each["what"] for each in followed] for followed in forward] == [
            ["run Chain"], ["run Leaf"], ["message 1024 of topic readings"], ["state of pipeline papers", "job store"],
        ]  # fmt: skip


def _check_spans(of_trace: list[dict[str, Any]]) -> None:
    names = [span["name"] for span in of_trace]
    for name in CHAIN:
        assert names.count(name) == 1, f"{name} in {names}"
    assert names.count("claim begin") == 2, "the first worker was killed"
    assert names.count("run papers/both") == 1, "the job of a build is in the trace, too"
    ids = {span["context"]["span_id"] for span in of_trace} | {f"0x{CALLER}"}
    assert {span["parent_id"] for span in of_trace} <= ids, "every span is below another of the trace"
    by_name = {span["name"]: span for span in reversed(of_trace)}
    assert by_name["POST"]["parent_id"] == f"0x{CALLER}"
    halves = [span["context"]["span_id"] for span in of_trace if span["name"] == "step Chain.halve"]
    joins = [span for span in of_trace if span["name"] == "step Chain.join"]
    assert sorted(link["context"]["span_id"] for link in joins[0]["links"]) == sorted(halves)
    inputs = {by_name[name]["context"]["span_id"] for name in ("task Note.note", "run store")}
    both = by_name["build papers/both"]
    assert {both["parent_id"], *(link["context"]["span_id"] for link in both["links"])} == inputs
    assert by_name["build papers/told"]["parent_id"] == both["context"]["span_id"]
    assert by_name["alert stored.seen"]["parent_id"] == by_name["build papers/told"]["context"]["span_id"]


def _check_log_lines(said: str, spans: list[dict[str, Any]]) -> None:
    by_id = {span["context"]["span_id"]: span["name"] for span in spans}
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{") and '"told' in line]
    told = {line["event"]: line for line in lines if line["event"].startswith("told")}
    for event, name in (("told", "step Leaf.tell"), ("told of state", "build papers/told")):
        assert told[event]["trace_id"] == TRACE
        assert by_id[f"0x{told[event]['span_id']}"] == name


def _explained(on: Stage, id: str, environment: Any) -> Any:
    shown = on.command("explain", id, "--forward", "--json", "--app", str(TRACED), **environment)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)
