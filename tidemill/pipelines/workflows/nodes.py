"""The nodes of workflow files: what each type does with an item.

A node is *per item* (it gets one item at a time) or *over all* (it gets the list). Its result is added to the item
under the node's name. A custom type is a function:

    @node_type("shout")
    def shout(data, item):
        return data["text"].upper()
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from tidemill.core.errors import ConfigError, TidemillError
from tidemill.core.web.public_url import site_of
from tidemill.engine.outbound_http import OutboundHttpError, fetch
from tidemill.engine.worker.threads import in_thread
from tidemill.pipelines.workflows.expression_methods import shown
from tidemill.pipelines.workflows.expressions import ExpressionError, evaluate, fill
from tidemill.pipelines.workflows.llm import ask
from tidemill.pipelines.workflows.safe_templates import (
    TemplateError,
    check_option,
    check_templates,
    filled_path,
    shell_template,
    sql_template,
    takes_no_options,
)

#: Custom transforms and node types by their names in files.
TRANSFORMS: dict[str, Callable[..., Any]] = {}
NODE_TYPES: dict[str, NodeType] = {}

#: Fields whose expressions the node evaluates itself.
_RAW = {
    "if": {"condition"},
    "transform": {"expression"},
    "run_command": {"command"},
    "postgres_query": {"query"},
    "append_to_file": {"path", "file"},
    "hardwired": {"items", "value", "json"},
}
HTTP_PATIENCE = 30.0


class NodeError(TidemillError):
    """A node failed; names the node and the cause."""


class NodeType(msgspec.Struct, frozen=True):
    """What nodes of a type do."""

    run: Callable[..., Any]
    per_item: bool = True
    fields: Mapping[str, Mapping[str, Any]] | None = None
    """The fields of its data as JSON Schemas by name, for editors and checks; None if it may have any."""
    role: Literal["operator", "admin"] = "operator"
    """What a caller needs to run it: admin for a node that reaches beyond Tidemill, such as one that runs a command."""


class Node(msgspec.Struct, frozen=True):
    """A node of a workflow file."""

    id: str
    type: str
    name: str
    data: dict[str, Any] = {}
    concurrency_key: str | None = None
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            check_templates(self.type, self.data)
        except TemplateError as error:
            field = error.field or ("command" if self.type == "run_command" else "query")
            raise NodeError(f"node {self.name!r}, field {field!r}: {error}") from error


def transform(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function under a name for `state_transform` nodes: `function(entity, files or text, **data)`."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        TRANSFORMS[name] = function
        return function

    return register


def node_type(
    name: str,
    *,
    per_item: bool = True,
    fields: Mapping[str, Mapping[str, Any]] | None = None,
    role: Literal["operator", "admin"] = "operator",
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a node type: `function(data, item)`, or `function(data, items)` if not per item.

    `fields` declares its data for editors and checks: a JSON Schema for each field. `role` is what a caller needs to
    run a workflow with such a node.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        NODE_TYPES[name] = NodeType(function, per_item, fields, role)
        return function

    return register


def find_type(node: Node) -> NodeType:
    """The type of a node; an error lists the known types."""
    found = NODE_TYPES.get(node.type)
    if found is None:
        raise NodeError(
            f"node {node.name!r}: type {node.type!r} is not known; there are {', '.join(sorted(NODE_TYPES))}, "
            "and those that you add with @node_type"
        )
    return found


def filled(node: Node, item: Mapping[str, Any], skip: set[str]) -> dict[str, Any]:
    """A node's data with evaluated expressions; an error names the node and the field."""
    made: dict[str, Any] = {}
    for field, value in node.data.items():
        if field in skip:
            made[field] = value
            continue
        try:
            made[field] = fill(value, item)
        except ExpressionError as error:
            raise NodeError(f"node {node.name!r}, field {field!r}: {error}") from error
    return made


async def run_node(node: Node, items: list[dict[str, Any]]) -> list[tuple[dict[str, Any], Any]]:
    """The results of a node, each with its item."""
    if node.data.get("pinned") and "pinnedOutput" in node.data:
        return [(item, node.data["pinnedOutput"]) for item in items or [{}]]
    kind = find_type(node)
    if not kind.per_item:
        data = filled(node, {"items": items, **(items[0] if items else {})}, _RAW.get(node.type, set()))
        value = await _called(node, kind.run, data, items)
        return [({}, each) for each in value] if isinstance(value, list) else [({}, value)]
    results: list[tuple[dict[str, Any], Any]] = []
    for item in items:
        data = filled(node, item, _RAW.get(node.type, set()))
        results.append((item, await _called(node, kind.run, data, item)))
    return results


async def _called(node: Node, function: Callable[..., Any], data: dict[str, Any], given: Any) -> Any:
    try:
        if inspect.iscoroutinefunction(function):
            return await function(data, given)
        return await in_thread(partial(function, data, given))
    except ExpressionError as error:
        raise NodeError(f"node {node.name!r}: {error}") from error
    except KeyError as error:
        raise NodeError(f"node {node.name!r}: field {error.args[0]!r} is missing") from error


@node_type("start")
@node_type("scheduled")
@node_type("webhook")
def pass_on(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Starts a run: returns the payload."""
    return item.get("payload")


@node_type("hardwired", per_item=False)
def hardwired(data: dict[str, Any], items: list[dict[str, Any]]) -> Any:
    """Returns its literal value; JSON as text is read first, so that a value in it stays one value."""
    value = data.get("items", data.get("value", data.get("json")))
    literal = json.loads(value) if isinstance(value, str) and value[:1] in ("[", "{") and value[:2] != "{{" else value
    return fill(literal, {"items": items, **(items[0] if items else {})})


@node_type("set")
def set_fields(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Returns its fields, filled in."""
    fields = data.get("fields", data)
    if isinstance(fields, list):
        return {str(field["name"]): field.get("value") for field in fields}
    return fields


@node_type("transform")
def transform_item(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Returns the value of its expression."""
    return evaluate(_bare(str(data["expression"])), item)


@node_type("if")
def decide(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Returns true or false; items continue through the connector of that name."""
    value = evaluate(_bare(str(data["condition"])), item)
    if not isinstance(value, bool):
        raise ExpressionError(f"the condition {data['condition']!r} is neither true nor false, but {value!r}")
    return value


@node_type("http")
def http(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Sends an HTTP request."""
    url, body = str(data["url"]), data.get("body")
    payload = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    headers = {"User-Agent": "tidemill", **(data.get("headers") or {})}
    try:
        answer = fetch(str(data.get("method") or "GET"), url, payload, headers, timeout=HTTP_PATIENCE)
    except OutboundHttpError as error:
        raise ConfigError(str(error)) from error
    if answer.status >= 300:
        raise ConfigError(f"{site_of(url)} answered {answer.status}: {answer.text(200)}")
    text = answer.text()
    try:
        content: Any = json.loads(text)
    except ValueError:
        content = text
    return {"status": answer.status, "body": content}


@node_type("rss")
def rss(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Reads the entries of a feed."""
    text = str(http({"url": data["url"]}, item)["body"])
    if "<!ENTITY" in text:
        raise ConfigError("the feed declares entities: it is rejected as unsafe")
    root = ElementTree.fromstring(text)  # noqa: S314 - safe without entities
    return [
        {child.tag.rpartition("}")[2]: (child.text or "").strip() for child in entry}
        for entry in root.iter()
        if entry.tag.rpartition("}")[2] in ("item", "entry")
    ]


@node_type("append_to_file", role="admin")
def append_to_file(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Adds a line to a file."""
    path = Path(filled_path(str(data.get("path") or data["file"]), lambda each: shown(evaluate(each, item))))
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as opened:
        opened.write(str(data.get("content", "")) + "\n")
    return {"path": str(path)}


@node_type("run_command", role="admin")
async def run_command(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Runs a program: a list as it is, a text by the shell; each {{…}} is one word, whatever its value is."""
    command = data["command"]
    given = str(data.get("stdin", "")).encode()
    pipe = asyncio.subprocess.PIPE
    if isinstance(command, list):
        words = [shown(fill(word, item)) for word in command]
        for at, word in enumerate(words):
            if at and not str(command[at]).startswith("-") and not takes_no_options(words[:at]):
                check_option(word)
    else:
        template = shell_template(str(command))
        values = [shown(evaluate(each, item)) for each in template.expressions]
        for at in template.words:
            check_option(values[at])
        words = ["/bin/sh", "-c", template.text, "sh", *values]
    if any("\0" in word for word in words):
        raise ConfigError("a value for the command holds a NUL character, which no argument can hold")
    child = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, stderr=pipe)
    output, errors = await child.communicate(given)
    if child.returncode != 0:
        raise ConfigError(f"the command ended with {child.returncode}: {errors.decode(errors='replace').strip()[:500]}")
    return {"stdout": output.decode(errors="replace"), "exitCode": child.returncode}


@node_type("postgres_query", role="admin")
async def postgres_query(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Queries a PostgreSQL database; each {{…}} in the query is a bound parameter."""
    import asyncpg

    given = list(data.get("parameters") or [])
    template = sql_template(str(data["query"]), first=len(given) + 1)
    values = [*given, *(evaluate(each, item) for each in template.expressions)]
    connection = await asyncpg.connect(str(data.get("url") or os.environ[str(data.get("urlVariable"))]))
    try:
        prepared = await connection.prepare(template.text)
        rows = await prepared.fetch(
            *[
                await _typed(connection, kind, value)
                for kind, value in zip(prepared.get_parameters(), values, strict=True)
            ]
        )
    except asyncpg.PostgresError as error:
        raise ConfigError(f"the query failed: {error}") from error
    finally:
        await connection.close()
    return [json.loads(json.dumps(dict(row), default=str)) for row in rows]


async def _typed(connection: Any, kind: Any, value: Any) -> Any:
    """A value as its parameter's type needs it: PostgreSQL reads a text or a number as it reads a literal."""
    if value is None or kind.name in ("text", "varchar", "bpchar", "name"):
        return None if value is None else shown(value)
    if kind.name in ("json", "jsonb"):
        return json.dumps(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return await connection.fetchval(f'SELECT $1::text::"{kind.schema}"."{kind.name}"', shown(value))
    return value


@node_type("llm")
@node_type("claude")
@node_type("prompt")
async def llm(data: dict[str, Any], item: dict[str, Any]) -> Any:
    """Calls a language model."""
    text = await asyncio.to_thread(
        ask,
        str(data["prompt"]),
        model=data.get("model"),
        system=data.get("system"),
        limit=int(data.get("maxTokens", 2000)),
    )
    return {"content": text}


def _bare(text: str) -> str:
    """An expression without surrounding braces."""
    stripped = text.strip()
    return stripped[2:-2] if stripped.startswith("{{") and stripped.endswith("}}") else stripped
