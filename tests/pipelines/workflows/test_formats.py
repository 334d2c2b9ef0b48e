"""Files of other products do here what they do there: against real servers for HTTP, mail and language models."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, quote_plus

import psutil
import pytest
import uvloop

from tests.support.mail_server import mail_server
from tests.support.pipelines import held, put, tree, update
from tests.support.receiver import Request
from tests.support.workflow_runs import asked, chain, keep_credentials, node, run, run_file, staged
from tidemill.core.errors import ConfigError
from tidemill.engine.secrets.environment import allow_env
from tidemill.pipelines.workflows import graph, parse_workflow
from tidemill.pipelines.workflows.llm import ModelCallError, ask
from tidemill.pipelines.workflows.node_types.commands import run_command
from tidemill.pipelines.workflows.nodes import NodeError
from tidemill.store.database import Database

LINES = "({lines: $.day.content.split('\\n').length, at: $.day.path})"
KEY = [{"name": "X-Key", "value": "{{$credentials.news.token}}"}]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_an_http_node_sends_what_its_body_mode_says_and_gives_the_whole_answer() -> None:
    with asked() as (url, requests):
        made = run(
            node("start", "start"),
            node("json", "http", url=f"{url}/a", method="POST", body_mode="json",
                 json_body='{"title": "{{$.start.title}}", "n": {{$.start.n}}}',
                 headers=[{"name": "X-Tide", "value": "{{$.start.n}}"}], timeout=5),
            node("fields", "http", url=f"{url}/b", method="POST", body_mode="fields",
                 body_fields=[{"name": "who", "value": "{{$.start.title}}"}]),
            node("none", "http", url=f"{url}/c", body_mode="none"),
            payload={"title": 'say "hi"', "n": 3},
        )  # fmt: skip
    assert json.loads(requests[0].body) == {"title": 'say "hi"', "n": 3}
    assert {name.lower(): value for name, value in requests[0].headers.items()}["x-tide"] == "3"
    assert json.loads(requests[1].body) == {"who": 'say "hi"'}
    assert requests[2].body == b""
    (answer,) = made["json"]
    assert (answer["status"], answer["statusText"], answer["body"], answer["url"]) == (
        200,
        "OK",
        {"ok": True},
        f"{url}/a",
    )
    assert "content-type" in answer["headers"] or answer["headers"]
    assert "error" not in answer


def test_a_failed_request_is_an_output_of_a_workflow_and_a_failure_of_a_state(
    tmp_path: Path,
) -> None:
    with asked((503, b"later")) as (url, _):
        made = run(
            node("h", "http", url=url), node("bad", "if", condition="{{ $.h.error }}"), node("s", "set", fields=[])
        )
        assert made["h"][0]["status"] == 503
        assert "503" in made["h"][0]["error"]
        assert len(made["s"]) == 1


async def test_a_state_is_not_made_of_an_error_page(tmp_path: Path, database: Database) -> None:
    stage = {
        "id": "page", "type": "transform", "input": "src", "pattern": "out/{id}.txt",
        "node": {"typeId": "http", "data": {"url": "URL"}},
    }  # fmt: skip
    with asked((500, b"broken")) as (url, _):
        stage["node"]["data"]["url"] = url  # type: ignore[index]
        written = staged({"id": "src", "type": "source", "pattern": "in/{id}.txt"}, stage)
        (pipeline,) = parse_workflow(written, "f").pipelines
        put(tmp_path / "states", {"in/a.txt": "x"})
        assert held(await update(database, pipeline)) == {"page/a": "BackingOff"}


def test_an_if_filters_and_a_connection_named_false_takes_the_others() -> None:
    items = node("items", "hardwired", json="[1, 5, 9]")
    made = run(
        items,
        node("big", "if", condition="$.items > 4"),
        node("kept", "set", fields=[{"name": "n", "value": "{{$.items}}"}]),
    )
    assert made["kept"] == [{"n": 5}, {"n": 9}]
    both = chain(
        items,
        node("big", "if", condition="$.items > 4"),
        node("yes", "set", fields=[{"name": "n", "value": "{{$.items}}"}]),
    )
    both["nodes"].append(node("no", "set", fields=[{"name": "n", "value": "{{$.items}}"}]))
    both["connections"][1]["sourceConnectorId"] = "true"
    both["connections"].append({"sourceNodeId": "big", "sourceConnectorId": "false", "targetNodeId": "no"})
    (workflow,) = parse_workflow(both, "f").triggers
    made = asyncio.run(workflow.run())
    assert (made["yes"], made["no"]) == ([{"n": 5}, {"n": 9}], [{"n": 1}])


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_command_may_end_without_reading_what_it_is_given(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """On the event loop of workers a write to a command that had ended failed its node."""
    unread, read = "x" * 1_000_000, "high water"
    with asyncio.Runner(loop_factory=loop) as runner:
        for _ in range(20):
            runner.run(run_command({"command": "true", "args": [], "stdin": unread}, {}))
        made = runner.run(run_command({"command": "cat", "args": [], "stdin": read}, {}))
    assert made["stdout"] == read


def test_a_command_has_its_arguments_folder_time_limit_and_return_code(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    made = run(node("c", "run_command", command="pwd", args=["-P"], workingDirectory="work"))
    assert made["c"][0]["stdout"].strip() == str((tmp_path / "work").resolve())
    with pytest.raises(ConfigError, match="longer than its timeout of 1 s"):
        run(node("c", "run_command", command="sleep 60", timeout=1))
    told = run(
        node("c", "run_command", command="exit 3"),
        node("s", "set", fields=[{"name": "code", "value": "{{$.c.returnCode}}"}]),
    )
    assert told["s"] == [{"code": 3}]


def test_a_command_ends_with_its_own_end_also_if_what_it_has_started_lives_on() -> None:
    made = run(node("c", "run_command", command="sleep 600 & echo $!", timeout=30))
    left = int(made["c"][0]["stdout"])
    assert psutil.pid_exists(left)
    os.kill(left, signal.SIGKILL)


async def test_stages_run_commands_ifs_and_folders_and_read_json(tmp_path: Path, database: Database) -> None:
    written = staged(
        {"id": "day", "name": "Days", "description": "logs", "type": "source", "pattern": "daily/{date}/"},
        {"id": "sum", "type": "transform", "input": "day", "pattern": "sum/{date}.json",
         "node": {"typeId": "transform", "data": {"expression": LINES}}},
        {"id": "copy", "type": "transform", "input": "sum", "pattern": "copy/{date}.txt", "validation": {"minSize": 1},
         "node": {"typeId": "run_command", "data": {"command": "cp", "args": ["{{$.sum.path}}", "{{output_path}}"]}}},
        {"id": "many", "type": "transform", "input": "sum", "pattern": "many/{date}.txt",
         "node": {"typeId": "if", "data": {"condition": "$.sum.content.lines > 1"},
                  "then": {"typeId": "transform", "data": {"expression": "'many in ' + $.sum.content.at"}}}},
        {"id": "kept", "type": "transform", "input": "sum", "pattern": "kept/{date}.txt",
         "node": {"typeId": "if", "data": {"condition": "$.sum.content.lines > 1"},
                  "then": {"typeId": "run_command",
                           "data": {"command": "cp {{$.sum.path}} {{output_path}}"}}}},
    )  # fmt: skip
    (pipeline,) = parse_workflow(written, "f").pipelines
    put(tmp_path / "states", {"daily/1/a.txt": "one", "daily/1/b.txt": "two", "daily/2/a.txt": "three"})
    assert (await update(database, pipeline)).steps == []
    made = tree(tmp_path / "states")
    assert json.loads(made["sum/1.json"]) == {"lines": 2, "at": "daily/1"}
    assert made["copy/1.txt"] == made["sum/1.json"]
    assert made["many/1.txt"] == "many in daily/1"
    assert made["kept/1.txt"] == made["sum/1.json"]
    assert not {"many/2.txt", "kept/2.txt"} & set(made)


def test_feeds_and_json_answers_of_models_become_items(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: Request) -> tuple[int, bytes]:
        if request.path.startswith("/feed"):
            return 200, b"<rss><channel><item><title>a</title></item><item><title>b</title></item></channel></rss>"
        sent = json.loads(request.body)["messages"][-1]["content"]
        text = '```json\n[{"t": 1}, {"t": 2}]\n```' if "list" in sent else f"about {sent}"
        return 200, json.dumps({"choices": [{"message": {"content": text}}]}).encode()

    with asked(answer) as (url, requests):
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.setenv("OPENAI_BASE_URL", url)
        made = run(
            node("feed", "rss", url=f"{url}/feed"),
            node("agent", "claude_agent", prompt="{{$.feed.title}}", system_prompt="be brief", tools=[], cwd="/tmp"),
        )
        assert [each["response"] for each in made["agent"]] == ["about a", "about b"]
        assert made["agent"][0]["conversation_id"]
        assert json.loads(requests[-1].body)["messages"][0] == {"role": "system", "content": "be brief"}
        made = run(
            node("ask", "claude_json", prompt="a list", max_tokens=100),
            node("s", "set", fields=[{"name": "t", "value": "{{$.ask.t}}"}]),
        )
        assert made["s"] == [{"t": 1}, {"t": 2}]
        assert json.loads(requests[-1].body)["max_tokens"] == 100


@pytest.mark.parametrize(
    ("dialect", "ended", "text", "told"),
    [
        ("OPENAI", "length", "half a sen", "the answer was cut off after 70 tokens, at 'half a sen'"),
        ("OPENAI", "content_filter", "", "withholds its answer (content_filter)"),
        ("OPENAI", "stop", " ", "an empty answer (stop)"),
        ("ANTHROPIC", "max_tokens", "half a sen", "the answer was cut off after 70 tokens, at 'half a sen'"),
        ("ANTHROPIC", "refusal", "no", "withholds its answer (refusal)"),
    ],
)
async def test_an_answer_that_was_cut_off_or_withheld_is_a_failure_of_its_state(
    dialect: str, ended: str, text: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, database: Database
) -> None:
    answer = {
        "choices": [{"message": {"content": text}, "finish_reason": ended}],
        "content": [{"type": "text", "text": text}], "stop_reason": ended,
    }  # fmt: skip
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    monkeypatch.setenv(f"{dialect}_API_KEY", "k")
    written = staged(
        {"id": "src", "type": "source", "pattern": "in/{id}.txt"},
        {"id": "ask", "type": "transform", "input": "src", "pattern": "out/{id}.txt",
         "node": {"typeId": "llm", "data": {"prompt": "{{$.src.content}}", "maxTokens": 70}}},
    )  # fmt: skip
    (pipeline,) = parse_workflow(written, "f").pipelines
    put(tmp_path / "states", {"in/a.txt": "a"})
    with asked((200, json.dumps(answer).encode())) as (url, _):
        monkeypatch.setenv(f"{dialect}_BASE_URL", url)
        await update(database, pipeline)
    assert "out/a.txt" not in tree(tmp_path / "states")
    (failure,) = await database.fetch("SELECT error, attempts, retry_at FROM tidemill.state_failure")
    assert told in failure["error"]
    assert (failure["attempts"], failure["retry_at"] is not None) == (1, True)


@pytest.mark.parametrize(
    ("dialect", "answer"),
    [
        ("OPENAI", "[]"),
        ("OPENAI", '{"choices": [{"message": null}]}'),
        ("OPENAI", '{"choices": [{"message": {"content": ["in", "parts"]}}]}'),
        ("ANTHROPIC", '{"content": null}'),
        ("ANTHROPIC", '{"content": ["text"]}'),
    ],
)
def test_an_answer_in_another_form_is_an_error_that_shows_it(
    dialect: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
    monkeypatch.setenv(f"{dialect}_API_KEY", "k")
    with asked((200, answer.encode())) as (url, _):
        monkeypatch.setenv(f"{dialect}_BASE_URL", url)
        with pytest.raises(ModelCallError, match="in a form that is not understood") as told:
            ask("hi")
    assert answer in str(told.value)


def test_a_message_goes_to_discord_with_the_credential_and_no_secret_comes_back() -> None:
    with asked(lambda request: (200, b'{"id": "9", "content": "hi", "echo": "t0ken-secret"}')) as (url, requests):
        keep_credentials(discord={"token": "t0ken-secret", "url": url})
        made = run(node("d", "discord_send", server_id="1", channel_id="42", message="hi", reply_to_id="7"))
        assert requests[0].path == "/channels/42/messages"
        headers = {name.lower(): value for name, value in requests[0].headers.items()}
        assert headers["authorization"] == "Bot t0ken-secret"
        assert json.loads(requests[0].body) == {"content": "hi", "message_reference": {"message_id": "7"}}
        assert made["d"][0]["id"] == "9"
        assert "t0ken-secret" not in json.dumps(made)
        with pytest.raises(ConfigError, match="is the number of a channel"):
            run(node("d", "discord_send", channel_id="../users", message="hi"))


def test_nodes_name_credentials_and_read_the_allowed_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDE_TABLE", "springs")
    monkeypatch.setenv("OTHER", "hidden")
    with asked() as (url, requests):
        keep_credentials(news={"token": "n3ws-secret"}, site={"username": "u", "password": "p4ssword"})
        allow_env(["TIDE_TABLE"])
        run(node("a", "http", url=f"{url}/?t={{{{$env.TIDE_TABLE}}}}", headers=KEY),
            node("b", "http", url=url, credentialName="site"),
            node("c", "http", url=url, credentialName="news"))  # fmt: skip
        sent = [{name.lower(): value for name, value in each.headers.items()} for each in requests]
        assert (requests[0].path, sent[0]["x-key"]) == ("/?t=springs", "n3ws-secret")
        assert sent[1]["authorization"].startswith("Basic ")
        assert sent[2]["authorization"] == "Bearer n3ws-secret"
        with pytest.raises(ConfigError, match="OTHER is not available"):
            run(node("a", "http", url=f"{url}/?t={{{{$env.OTHER}}}}"))
        with pytest.raises(ConfigError, match="no credential 'none'"):
            run(node("a", "http", url=url, credentialName="none"))
    with pytest.raises(ConfigError, match=r"\$credentials cannot be read here"):
        parse_workflow(chain(node("s", "set", fields=[{"name": "x", "value": "{{$credentials.news.token}}"}])), "f")


@pytest.mark.parametrize("secret", ['p4 ss"wörd/+', "plain-secret"])
def test_no_encoding_of_a_secret_comes_back(secret: str) -> None:
    def echo(request: Request) -> tuple[int, bytes]:
        login = request.headers["Authorization"].removeprefix("Basic ")
        told = {"login": login, "body": request.body.decode(), "path": request.path, login: "as a name"}
        return 200, json.dumps(told).encode()

    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    forms |= {base64.b64encode(text.encode()).decode() for text in (secret, f"ada:{secret}")}
    with asked(echo) as (url, requests):
        keep_credentials(site={"username": "ada", "password": secret})
        query = "?p={{encodeURIComponent($credentials.site.password)}}"
        made = run(node("a", "http", url=f"{url}/{query}", method="POST", credentialName="site",
                        body_fields=[{"name": "p", "value": "{{$credentials.site.password}}"}]))  # fmt: skip
        assert quote(secret, safe="") in requests[0].path
    for form in forms:
        assert form not in json.dumps(made)
        assert form not in json.dumps(made, ensure_ascii=False)
        assert form not in made["a"][0]["body"]["body"]


def test_an_error_about_a_credential_quotes_no_part_of_it() -> None:
    keep_credentials(site={"key": "pr1vate /key"})
    for read in (
        "JSON.parse($credentials.site.key)",
        "BigInt($credentials.site.key)",
        "RegExp($credentials.site.key, 'pr1')",
    ):
        with pytest.raises(ConfigError, match=r"field 'url'") as told:
            run(node("a", "http", url=f"http://127.0.0.1/{{{{{read}}}}}"))
        assert "pr1vate" not in str(told.value)


def test_a_credential_may_be_spread() -> None:
    keep_credentials(site={"key": "drawer"})
    with asked() as (url, requests):
        run(node("a", "http", url=f"{url}/{{{{[...$credentials.site.key].reverse().join('')}}}}"))
    assert requests[0].path == "/reward"
    with pytest.raises(ConfigError, match=r"\$credentials cannot be read here"):
        parse_workflow(chain(node("s", "set", fields=[{"name": "x", "value": "{{[...$credentials.site.key]}}"}])), "f")


def test_a_notification_goes_out_by_mail_or_to_a_url() -> None:
    with mail_server() as (number, mails):
        port = str(number)
        keep_credentials(notification={"server": "127.0.0.1", "port": port, "to": "ops@example.org"})
        assert run(node("n", "notification", title="Tide", message="high water"))["n"] == [{"sent": True}]
        some = {"server": "127.0.0.1", "port": port, "to": "ops@example.org, gone@example.org"}
        keep_credentials(notification=some)
        made = run(node("n", "notification", title="Tide", message="high water"))
        assert made["n"][0]["refused"] == ["gone@example.org"]
        for changed, told in (
            ({"to": "gone@example.org"}, "refused every receiver"),
            ({"port": "smtp"}, "port is a number"),
            ({"tls": "true"}, "did not accept the mail"),  # It has no TLS: nothing is sent without.
        ):
            keep_credentials(notification={**some, **changed})
            with pytest.raises(ConfigError, match=told):
                run(node("n", "notification", title="Tide", message="high water"))
    assert len(mails) == 2
    assert "Subject: Tide" in mails[0]
    assert "high water" in mails[0]
    with asked() as (url, requests):
        keep_credentials(notification={"url": url})
        run(node("n", "notification", title="Tide", message="high water"))
        assert json.loads(requests[0].body) == {"title": "Tide", "message": "high water", "text": "Tide: high water"}


def test_a_query_takes_named_parameters_and_a_credential(database_url: str) -> None:
    keep_credentials(postgres={"url": database_url})
    made = run(
        node("q", "postgres_query", query="SELECT n, %(word)s AS word FROM generate_series(1, %(top)s::int) n",
             params=[{"name": "word", "value": "ti'de"}, {"name": "top", "value": 2}]),
        node("d", "postgres_query", query="CREATE TEMP TABLE t AS SELECT 1"),
    )  # fmt: skip
    assert made["q"] == [{"n": 1, "word": "ti'de"}, {"n": 2, "word": "ti'de"}]
    assert set(made["d"][0]) == {"affected"}
    kinds = (
        "sum(n) AS sum, avg(n) AS avg, jsonb_build_object('a', 1) AS made, NULL::json AS none, date '2026-01-15' AS day"
    )
    told = "$.q.sum + $.q.avg + $.q.made.a + new Date($.q.day).getUTCDate()"
    made = run(
        node("q", "postgres_query", query=f"SELECT {kinds} FROM generate_series(1, 2) n"),
        node("t", "transform", expression=told),
    )
    assert made["q"] == [{"sum": 3, "avg": 1.5, "made": {"a": 1}, "none": None, "day": "2026-01-15"}]
    assert made["t"] == [{"result": 3 + 1.5 + 1 + 15}]
    with pytest.raises(ConfigError, match="params has no such name"):
        run(node("q", "postgres_query", query="SELECT %(x)s"))


def test_a_file_gets_a_line_and_a_schedule_tells_its_time(tmp_path: Path) -> None:
    made = run(
        node("at", "scheduled"), node("log", "append_to_file", filepath="log.txt", content="{{$.at.time.slice(0, 2)}}")
    )
    assert made["log"] == [{"written": True, "filepath": "log.txt"}]
    assert (tmp_path / "log.txt").read_text() == "20\n"


async def test_a_state_starts_actions_once_and_again_when_it_changes(tmp_path: Path, database: Database) -> None:
    graph = chain(
        node("trig", "state_trigger", pattern="in/{id}.txt"),
        node("long", "if", condition="$.trig.content.length > 2"),
        node("log", "append_to_file", filepath="log.txt", content="{{$.trig.entity_id}}: {{$.trig.content}}"),
        stateRoot="states",
    )  # fmt: skip
    (pipeline,) = parse_workflow(graph, "acting").pipelines
    put(tmp_path / "states", {"in/a.txt": "apple", "in/b.txt": "no"})
    assert (await update(database, pipeline)).steps == []
    assert (tmp_path / "log.txt").read_text() == "a: apple\n"
    graph["nodes"][2]["data"]["content"] += "!"
    (pipeline,) = parse_workflow(graph, "acting").pipelines
    assert (await update(database, pipeline)).steps == []
    assert (tmp_path / "log.txt").read_text() == "a: apple\n"
    put(tmp_path / "states", {"in/a.txt": "apricot"})
    assert (await update(database, pipeline)).steps == []
    assert (tmp_path / "log.txt").read_text() == "a: apple\na: apricot!\n"


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    example = json.loads((Path(__file__).parents[3] / "examples/workflow_files/feed.json").read_text())
    feed = b"<rss><item><title>Spring tide</title><link>https://a</link></item><item><title>Cats</title></item></rss>"
    with asked(lambda request: (200, feed if "feed" in request.path else b"{}")) as (url, requests):
        keep_credentials(notification={"url": f"{url}/notices"})
        example["nodes"][1]["data"]["url"] = f"{url}/feed.xml"
        (workflow,) = parse_workflow(example, "feed").triggers
        asyncio.run(workflow.run())
    assert (tmp_path / "tides.txt").read_text().endswith(" Spring tide <https://a>\n")
    assert [request.path for request in requests] == ["/feed.xml", "/notices"]


def test_what_an_http_node_sends_is_filled_in_also_where_it_is_no_text() -> None:
    fields = [{"name": "a", "value": True}, {"name": "b", "value": "{{$.payload}}"}]
    with asked() as (url, found):
        run(
            node("h", "http", url=url, method="POST", json_body={"{{$.payload.k}}": ["{{$.payload}}"]}),
            payload={"k": "v"},
        )
        assert json.loads(found[-1].body) == {"v": [{"k": "v"}]}
        form = [{"name": "Content-Type", "value": "application/x-www-form-urlencoded; charset=utf-8"}, *fields]
        run(node("h", "http", url=url, method="POST", headers=form, body_fields=fields), payload={"k": "v"})
        assert found[-1].body == b"a=true&b=%7B%22k%22%3A+%22v%22%7D"
        assert (found[-1].headers["a"], found[-1].headers["b"]) == ("true", '{"k": "v"}')


def test_the_items_of_a_hardwired_node_may_be_json_that_an_expression_writes() -> None:
    with asked((200, b'[{"name": "ebb {{1 + 1}}"}, {"name": "flow"}]')) as (url, _):
        made = run(
            node("get", "http", url=url),
            node("each", "hardwired", json="{{JSON.stringify($.get.body)}}"),
            node("name", "transform", expression="$.each.name"),
        )
    assert made["name"] == [{"result": "ebb {{1 + 1}}"}, {"result": "flow"}]


def test_items_that_double_at_each_branch_end_in_an_error_and_not_in_all_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graph, "MOST_OUTPUTS", 5_000)
    nodes, links, last = [node("items", "hardwired", json="[1, 2]")], [], "items"
    for at in range(20):
        left, right, both = (f"{name}{at}" for name in ("left", "right", "both"))
        nodes += [node(each, "set", v="1") for each in (left, right, both)]
        links += [(last, left), (last, right), (left, both), (right, both)]
        last = both
    ends = [{"sourceNodeId": one, "targetNodeId": two} for one, two in links]
    with pytest.raises(NodeError, match=r"node 'both\d+': more than \d+ items reach it, with \d+ outputs each"):
        run_file({"nodes": nodes, "connections": ends})


def test_a_connection_that_is_there_twice_passes_its_items_once() -> None:
    data = chain(node("rows", "hardwired", json="[1, 2]"), node("row", "transform", expression="$.rows"))
    data["connections"] *= 2
    assert run_file(data)["row"] == [{"result": 1}, {"result": 2}]


def test_a_command_that_fails_without_a_word_of_its_own_ends_with_its_code() -> None:
    for command, told in (("exit 4", "ended with 4$"), ("echo no tide; exit 4", "ended with 4: no tide$")):
        with pytest.raises(ConfigError, match=told):
            run(node("c", "run_command", command=command))
