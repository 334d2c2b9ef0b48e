"""Failures of nodes: what they say, and how other nodes read them."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.support.workflow_runs import asked, chain, keep_credentials, node, run
from tidemill.pipelines.workflows import parse_workflow
from tidemill.pipelines.workflows.node_runs import LONGEST, recorded
from tidemill.pipelines.workflows.nodes import NODE_TYPES, NodeError, node_type


@pytest.mark.parametrize("name", ["cmd", "my cmd", "größe", "übung"])
@pytest.mark.parametrize("reads", ['$[{}]["returnCode"]', "$[{}].returnCode", "$?.[{}]?.['returnCode']"])
def test_a_failure_is_an_output_however_a_node_reads_it(name: str, reads: str) -> None:
    command = {**node("c", "run_command", command="exit 3"), "name": name}
    by_bracket = reads.format(json.dumps(name, ensure_ascii=False))
    assert run(command, node("t", "transform", expression=by_bracket))["t"] == [{"result": 3}]
    if name.isidentifier():
        assert run(command, node("t", "transform", expression=f"$.{name}.returnCode"))["t"] == [{"result": 3}]


@pytest.mark.parametrize(
    ("type", "data", "message"),
    [
        ("append_to_file", {"filepath": "/proc", "content": "x"}, "node 'n': IsADirectoryError"),
        (
            "run_command",
            {"command": "true", "timeout": "{{$.payload}}"},
            "node 'n': field 'timeout': 'soon' is not a number",
        ),
        ("http", {"url": "http://x.test", "timeout": "{{$.payload}}"}, "node 'n': field 'timeout': 'soon' is not"),
        ("llm", {"prompt": "x", "maxTokens": "{{$.payload}}"}, "node 'n': field 'maxTokens': 'soon' is not a number"),
        ("postgres_query", {"query": "SELECT 1", "url": "postgresql://h:soon/x"}, "node 'n': ValueError"),
    ],
)
def test_whatever_a_node_raises_names_the_node(type: str, data: dict[str, Any], message: str) -> None:
    with pytest.raises(NodeError, match=re.escape(message)):
        run(node("n", type, **data), payload="soon")


def test_what_the_code_of_an_application_raises_holds_no_secret() -> None:
    def broken(data: dict[str, Any], item: dict[str, Any]) -> Any:
        raise RuntimeError(f"cannot use {data['key']}")

    node_type("broken", fields={"key": {"type": "string"}})(broken)
    keep_credentials(news={"token": "geheimnis"})
    try:
        with pytest.raises(NodeError, match=r"node 'n': RuntimeError: cannot use \*+$"):
            run(node("n", "broken", key="{{$credentials.news.token}}"))
    finally:
        del NODE_TYPES["broken"]
        keep_credentials()


def test_no_part_of_a_secret_is_left_where_a_text_is_cut() -> None:
    secret = "geheimnis-0123456789"
    keep_credentials(news={"token": secret})
    try:
        with asked((500, b"x" * 190 + secret.encode())) as (url, _):
            (made,) = run(node("n", "http", url=url, credentialName="news"))["n"]
        assert "geheim" not in made["error"]
        with pytest.raises(NodeError) as raised:
            run(node("n", "run_command", command="head -c 490 /dev/zero | tr '\\0' x >&2; cat >&2; exit 1",
                     stdin="{{$credentials.news.token}}"))  # fmt: skip
        assert "geheim" not in str(raised.value)
        written = chain(node("n", "http", url="http://x.test", credentialName="news", pinned=True, pinnedOutput=0))
        written["nodes"][0]["data"]["pinnedOutput"] = "x" * (LONGEST - 10) + secret
        with recorded() as runs:
            asyncio.run(parse_workflow(written, "f").triggers[0].run(None))
        assert "geheim" not in json.dumps([each.outputs for each in runs()])
    finally:
        keep_credentials()
