"""Files as people bring them along, in each style, run to the end against real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.mail_server import mail_server
from tests.support.pipelines import put, tree, update
from tests.support.receiver import Request
from tests.support.workflow_runs import asked, chain, keep_credentials, node, run_file
from tidemill.engine.secrets.environment import allow_env
from tidemill.pipelines.workflows import parse_workflow
from tidemill.store.database import Database

FEED = (
    b"<rss><channel><item><title>High water</title><guid>1</guid></item>"
    b"<item><title>Low water</title><guid>2</guid></item></channel></rss>"
)
ORDERS = {"orders": [{"id": 1, "total": 30, "customer": {"name": "Ada"}}, {"id": 2, "total": 5}], "next": None}
URL = "http://SERVER"


def reply(request: Request) -> tuple[int, bytes]:
    """A feed, a shop, a language model, a channel of messages; other paths send back what came."""
    body = request.body.decode()
    if request.path == "/feed":
        return 200, FEED
    if request.path == "/orders":
        return 200, json.dumps(ORDERS).encode()
    if request.path == "/missing":
        return 404, b'{"message": "no such thing"}'
    if request.path.startswith("/channels/"):
        return 200, json.dumps({"id": "99", "content": json.loads(body)["content"]}).encode()
    if request.path == "/chat/completions":
        prompt = json.loads(body)["messages"][-1]["content"]
        text = '```json\n[{"topic": "tide"}, {"topic": "moon"}]\n```' if "JSON" in prompt else f"About {prompt}"
        return 200, json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}).encode()
    return 200, json.dumps({"path": request.path, "got": body, "login": request.headers.get("Authorization")}).encode()


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """The address of a server for everything, in a folder of its own, with credentials."""
    monkeypatch.chdir(tmp_path)
    with asked(reply) as (url, _), mail_server() as (port, _):
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        monkeypatch.setenv("SHOP", "north sea")
        allow_env(["SHOP"])
        keep_credentials(
            bot={"token": "b0t-secret", "url": url},
            site={"username": "ada", "password": "s3cret-word"},
            notification={"server": "127.0.0.1", "port": str(port), "to": "ops@example.org"},
        )
        yield url


def fields(**values: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in values.items()]


def wired(*nodes: dict[str, Any], links: str, **more: Any) -> dict[str, Any]:
    """Nodes with the connections of a text: `a>b a>c if:true>d`."""
    made = []
    for at, link in enumerate(links.split()):
        source, _, target = link.partition(">")
        source, _, exit = source.partition(":")
        named = {"sourceConnectorId": exit} if exit else {}
        made.append({"id": f"c{at}", "sourceNodeId": source, "targetNodeId": target, **named})
    return {"nodes": list(nodes), "connections": made, **more}


ORDER = {"id": 7, "name": 'Ada "L"\nB', "tags": ["x"]}
WORKFLOWS: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "a feed is filtered, summed up by a model and kept": (
        chain(
            node("every", "scheduled", mode="cron", cron="0 6 * * 1-5", timezone="Europe/London"),
            node("feed", "rss", url=f"{URL}/feed"),
            node("high", "if", condition="$.feed.title.startsWith('High')"),
            node("sum", "claude_agent", prompt="{{$.feed.title}}", system_prompt="Be brief", tools=[]),
            node("line", "transform", expression="`${$.feed.guid}: ${$.sum.response}`"),
            node("save", "append_to_file", filepath="out/{{$.feed.guid}}.md", content="{{$.line.result}}"),
        ),
        {"scheduledAt": 1_760_000_000},
        {"line": [{"result": "1: About High water"}], "save": [{"written": True, "filepath": "out/1.md"}]},
    ),
    "an if with both lines named": (
        wired(
            node("start", "start"), node("get", "http", url=f"{URL}/orders"),
            node("n", "set", fields=fields(count="{{$.get.body.orders.length}}",
                                           last="{{$.get.body.orders.at(-1).customer?.name ?? 'none'}}")),
            node("many", "if", condition="{{ $.n.count > 5 }}"),
            node("yes", "set", fields=fields(x="many")), node("no", "set", fields=fields(x="few")),
            links="start>get get>n n>many many:true>yes many:false>no",
        ),
        None,
        {"n": [{"count": 2, "last": "none"}], "yes": [], "no": [{"x": "few"}]},
    ),
    "two requests are joined": (
        wired(
            node("start", "start"), node("a", "http", url=f"{URL}/a"),
            node("b", "http", url=f"{URL}/b?q={{{{$env.SHOP}}}}"),
            node("both", "transform", expression="$.a.body.path + $.b.body.path"),
            links="start>a start>b a>both b>both",
        ),
        None,
        {"both": [{"result": "/a/b?q=north%20sea"}]},
    ),
    "a JSON body with expressions": (
        chain(
            node("hook", "webhook"),
            node("post", "http", url=f"{URL}/post", method="POST", body_mode="json", credentialName="site",
                 json_body='{"who": "{{$.hook.name}}", "n": {{$.hook.n ?? 0}}, "tags": {{$.hook?.tags ?? []}}}'),
            node("sent", "transform", expression="JSON.parse($.post.body.got)"),
            node("login", "transform", expression="$.post.body.login"),
        ),
        ORDER,
        {"sent": [{"result": {"who": ORDER["name"], "n": 0, "tags": ["x"]}}],
         "login": [{"result": "Basic **********"}]},
    ),
    "a failed request is told by mail": (
        chain(
            node("start", "start"), node("get", "http", url=f"{URL}/missing"),
            node("bad", "if", condition="$.get.error"),
            node("tell", "notification", title="Failed", message="{{$.get.status}}: {{$.get.body.message}}"),
        ),
        None,
        {"tell": [{"sent": True}]},
    ),
    "topics of a model go to a channel": (
        chain(
            node("start", "start"), node("pick", "claude_json", prompt="Topics as JSON", max_tokens=500),
            node("top", "if", condition="$.pick.topic !== 'moon'"),
            node("tell", "discord_send", server_id="1", channel_id="123", content="top: {{$.pick.topic}}",
                 credentialName="bot"),
        ),
        None,
        {"tell": [{"id": "99", "content": "top: tide"}]},
    ),
    "a command gets its words as they are": (
        chain(
            node("start", "start"),
            node("run", "run_command", command="printf %s {{$.start.word}}; exit 3", timeout=20),
            node("three", "if", condition="$.run.returnCode === 3"),
            node("out", "transform", expression="$.run.stdout"),
        ),
        {"word": "a b; rm -r *"},
        {"out": [{"result": "a b; rm -r *"}]},
    ),
    "names with spaces, and a node over all items": (
        wired(
            node("start", "start"), node("rows", "hardwired", json='[{"n": 1}, {"n": 2}]'),
            {**node("twice", "transform", expression="$.rows.n * 2"), "name": "Twice as much"},
            node("sum", "hardwired", json="[{{$.items.reduce((sum, each) => sum + each['Twice as much'].result, 0)}}]"),
            links="start>rows rows>twice twice>sum",
        ),
        None,
        {"sum": [6]},
    ),
    "pinned nodes do nothing": (
        chain(
            node("start", "start"),
            node("slow", "http", url="http://nowhere.invalid", pinned=True, pinnedOutput={"body": {"ok": True}}),
            node("ask", "dialog", message="Publish?", buttons="Yes, No", pinned=True, pinnedOutput={"button": "Yes"}),
            node("go", "if", condition="$.ask.button === 'Yes' && $.slow.body.ok"),
            node("d", "set", fields=fields(day="{{new Date('2026-01-15T10:00:00Z').toISOString().slice(0, 10)}}",
                                           deep={"list": ["{{$.ask.button}}", 1, True]})),
            settings={"dataDirectory": "data"},
        ),
        None,
        {"d": [{"day": "2026-01-15", "deep": {"list": ["Yes", 1, True]}}]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_to_its_end(name: str, servers: str) -> None:
    written, payload, wanted = WORKFLOWS[name]
    made = run_file(json.loads(json.dumps(written).replace(URL, servers)), payload)
    assert {each: made.get(each, []) for each in wanted} == wanted
    assert "secret" not in json.dumps(made)


def source(id: str, pattern: str, **more: Any) -> dict[str, Any]:
    return {"id": id, "type": "source", "pattern": pattern, **more}


def made_by(id: str, input: str, pattern: str, type: str, *, stage: dict[str, Any] | None = None, **data: Any) -> Any:
    node = {"typeId": type, "data": data}
    return {"id": id, "type": "transform", "input": input, "pattern": pattern, "node": node, **(stage or {})}


SHOUT = {"then": {"typeId": "transform", "data": {"expression": "$.long_in.content + '!'"}}}
COPY = ["-c", 'tr a-z A-Z < "$0" > "$1"', "{{$.cmd_in.path}}", "{{output_path}}"]
ID = "{{$.t.entity_id}}"
#: Stages of one file: each reads the states under its own folder.
STAGES = [
    source("day", "daily/{date}/", name="Days"),
    made_by("sum", "day", "sum/{date}.md", "claude_agent", prompt="{{$.day.content}}", system="brief"),
    made_by("post", "sum", "post/{date}.md", "transform", expression="`# ${$.entity.date}\n${$.sum.content}`"),
    source("items", "items/{id}.json", name="rss_items"),
    made_by("page", "items", "page/{id}.json", "http", url=URL + "/{{$.rss_items.content.link}}"),
    made_by("meta", "page", "meta/{id}.txt", "transform", expression="$.items.content.title + $.page.content.path"),
    source("cmd_in", "cmd/{id}.txt"),
    made_by("cmd", "cmd_in", "cmd-out/{id}.txt", "run_command", command="sh", args=COPY, timeout=20),
    source("long_in", "long/{id}.txt"),
    made_by("long", "long_in", "long-out/{id}.txt", "if", condition="$.long_in.content.length > 3", stage=SHOUT),
    source("weather", "weather/{id}.json"),
    made_by("both", "long_in", "both/{id}.txt", "transform", expression="$.weather.content.wind?.speed ?? 'calm'"),
    made_by("topics", "cmd_in", "topics/{id}.json", "claude_json", prompt="JSON of {{$.cmd_in.content}}"),
    made_by("list", "topics", "list/{id}.txt", "transform", expression="$.topics.content.map(t => t.topic).join()"),
    made_by("card", "cmd_in", "card/{id}.json", "set",
            fields=fields(id="{{$.entity.id}}", n="{{$.cmd_in.content.length}}")),
    made_by("size", "long_in", "size/{id}.txt", "transform", stage={"validation": {"minSize": 4}},
            expression="$.long_in.content"),
    source("deep", "deep/{year}/{slug}.md"),
    made_by("flat", "deep", "flat/{year}/{slug}.txt", "transform", expression="$.entity.year + $.entity.slug"),
]  # fmt: skip
DRAWN = wired(
    node("t", "state_trigger", pattern="raw/{id}.json", scan_interval=30),
    node("ok", "state_check", pattern="approved/{id}.txt", entity_id=ID),
    node("raw", "state_read", pattern="raw/{id}.json", entity_id=ID),
    node("big", "if", condition="$.raw.content.n > 1"),
    node("twice", "state_write", pattern="big/{id}.json", entity_id=ID, content="{{ {n: $.raw.content.n * 2} }}"),
    node("same", "state_write", pattern="small/{id}.json", entity_id=ID, content="{{$.raw.content.n}}", min_size=1),
    node("tell", "discord_send", channel_id="1", message="{{$.t.entity_id}} is big", credentialName="bot"),
    links="t>ok ok>raw raw>big big:true>twice big:false>same big:true>tell", mode="pipeline", stateRoot="states",
)  # fmt: skip
SCANNED = wired(
    node("days", "state_scan", pattern="daily/{date}/", filter="hasFiles"),
    node("gate", "state_gate", pattern="gate/{{$.days.id}}.txt"),
    node("logs", "state_read", pattern="{{$.days.path}}/*.txt"),
    node("answer", "llm", prompt="{{$.logs.content}}"),
    node("write", "state_write", pattern="gated/{{$.days.id}}.md", content="{{$.answer.response.trim()}}"),
    links="days>gate gate>logs logs>answer answer>write", mode="pipeline", stateRoot="states",
)  # fmt: skip


async def test_pipelines_of_every_style_are_built_to_their_ends(
    servers: str, tmp_path: Path, database: Database
) -> None:
    root = tmp_path / "states"
    put(root, {
        "daily/d1/a.txt": "one", "daily/d1/b.txt": "two", "daily/d2/a.txt": "three", "gate/d1.txt": "y",
        "items/1.json": '{"link": "abc", "title": "Tide"}', "cmd/x y.txt": "hello", "deep/2026/tide.md": "x",
        "long/a.txt": "hello", "long/b.txt": "no", "weather/a.json": '{"temp": 4}',
        "raw/a.json": '{"n": 5}', "raw/b.json": '{"n": 1}', "raw/c.json": '{"n": 9}',
        "approved/a.txt": "y", "approved/b.txt": "y",
    })  # fmt: skip
    given = set(tree(root))
    staged = {"name": "staged", "mode": "pipeline", "stateRoot": "states", "stages": STAGES, "maxConcurrentEntities": 4}
    for name, data in (("staged", staged), ("drawn", DRAWN), ("scanned", SCANNED)):
        (pipeline,) = parse_workflow(json.loads(json.dumps(data).replace(URL, servers)), name).pipelines
        await update(database, pipeline)
    made = {path: text for path, text in tree(root).items() if path not in given}
    assert json.loads(made.pop("page/1.json"))["path"] == "/abc"
    assert "a is big" in made.pop("actions/tell/a.json")
    assert {path: text.strip() for path, text in made.items()} == {
        "sum/d1.md": "About one\ntwo", "sum/d2.md": "About three",
        "post/d1.md": "# d1\nAbout one\ntwo", "post/d2.md": "# d2\nAbout three",
        "meta/1.txt": "Tide/abc", "cmd-out/x y.txt": "HELLO", "long-out/a.txt": "hello!", "both/a.txt": "calm",
        "topics/x y.json": '[{"topic":"tide"},{"topic":"moon"}]', "list/x y.txt": "tide,moon",
        "card/x y.json": '{"id":"x y","n":5}', "size/a.txt": "hello", "flat/2026/tide.txt": "2026tide",
        "big/a.json": '{"n":10}', "small/b.json": "1", "gated/d1.md": "About one\ntwo",
    }  # fmt: skip
