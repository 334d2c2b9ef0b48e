"""Failures of nodes: what they say, and how other nodes read them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.support.workflow_runs import keep_credentials, node, run
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
