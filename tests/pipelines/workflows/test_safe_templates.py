"""Values of workflow files never become programs: of the shell, of SQL, or of another interpreter."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings, strategies as st

from tests.support.receiver import Request, receiver
from tidemill.core.errors import ConfigError
from tidemill.engine.outbound_http import allowing_hosts
from tidemill.pipelines.workflows.expressions.javascript import naming
from tidemill.pipelines.workflows.expressions.safe_templates import shell_template, sql_template
from tidemill.pipelines.workflows.load import parse_workflow
from tidemill.pipelines.workflows.nodes import NODE_TYPES, Node, NodeError, run_node
from tidemill.pipelines.workflows.questions import ASKING, Progress

#: Pieces that mean something to a shell or to SQL, and plain text between them.
HOSTILE = st.lists(
    st.sampled_from(
        [
            "; touch pwned; ",
            "$(touch pwned)",
            "`touch pwned`",
            "'",
            '"',
            "\\",
            "\n",
            "&& touch pwned",
            "| touch pwned",
            ">pwned",
            "${IFS}",
            "$1",
            "$@",
            "*",
            "~",
            "#",
            "-- ",
            "'; DROP TABLE secret; --",
            "$$",
            "E'",
            "') OR ('1'='1",
            "{{",
            "}}",
            "%s",
            "<<EOF",
        ]
    )
    | st.text(alphabet=st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=8),
    min_size=1,
    max_size=5,
).map("".join)


def node(type: str, **data: Any) -> Node:
    return Node("n", type, "n", data)


def result(found: Node, item: dict[str, Any]) -> Any:
    ((_, value),) = asyncio.run(run_node(found, [item]))
    return value


@pytest.mark.parametrize(
    "command",
    [
        "printf %s {{$.x}}",
        "printf %s '{{$.x}}'",
        'printf %s "{{$.x}}"',
        "printf %s \"$(printf %s {{$.x}}; echo .)\" | sed '$ s/.$//'",
        'X={{$.x}}; printf %s "$X"',
        "if test 1 = 1; then printf %s {{$.x}}; fi",
        "cd / && (printf %s {{$.x}})",
        ["printf", "%s", "{{$.x}}"],
        "printf %s {{$.x}} # it's a comment",
    ],
)
def test_a_value_is_one_word_of_a_command_whatever_is_in_it(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = node("run_command", command=command)

    @settings(max_examples=25, deadline=None)
    @given(HOSTILE)
    def holds(value: str) -> None:
        assert result(ran, {"x": value})["stdout"] == value
        assert not (tmp_path / "pwned").exists()

    holds()


#: A program that writes its arguments, and the commands that pass it a value.
ARGUMENTS = """#!/bin/sh
printf '%s\\n' "$@"
"""


@pytest.mark.parametrize(
    "command",
    [
        "./say {{$.x}}",
        "./say '{{$.x}}' more",
        './say "{{$.x}}"',
        "./say {{$.empty}}{{$.x}}",
        "timeout 5 ./say {{$.x}}",
        "cd . && ./say a {{$.x}}",
        "(./say {{$.x}})",
        './say "$(printf %s {{$.x}})"',
        ["./say", "{{$.x}}"],
        ["./say", "a", "{{$.empty}}{{$.x}}"],
        ["timeout", "5", "./say", "{{$.x}}"],
    ],
)
def test_a_value_that_begins_with_a_dash_is_never_an_option(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "say").write_text(ARGUMENTS)
    (tmp_path / "say").chmod(0o755)
    ran = node("run_command", command=command)

    @settings(max_examples=10, deadline=None)
    @given(HOSTILE, st.sampled_from(["", "-", "--"]))
    def holds(value: str, dashes: str) -> None:
        value = dashes + value
        if value.startswith("-"):
            with pytest.raises(ConfigError, match="would be an option of the command: write -- before"):
                result(ran, {"x": value, "empty": ""})
        else:
            result(ran, {"x": value, "empty": ""})

    holds()


@pytest.mark.parametrize(
    "command",
    ["printf '%s\n' {{$.x}}", "ls -d -- {{$.x}}", "echo a > {{$.x}} && ls -d ./{{$.x}}", "X={{$.x}}; ls -d -- $X",
     ["ls", "-d", "--", "{{$.x}}"], ["ls", "-d", "./{{$.x}}"], ["test", "{{$.x}}", "=", "-la"], "test {{$.x}} = -la"],
)  # fmt: skip
def test_a_dash_is_accepted_where_no_option_can_be(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-la").touch()
    assert result(node("run_command", command=command), {"x": "-la"})["stdout"].strip() in ("-la", "./-la", "")


@pytest.mark.parametrize(
    "command",
    [
        "{{$.x}}",
        "{{$.x}} now",
        "ls; {{$.x}}",
        "ls | {{$.x}}",
        "ls && ./{{$.x}}",
        "X=1 {{$.x}}",
        "sudo {{$.x}}",
        "env A=1 {{$.x}}",
        "/usr/bin/env {{$.x}}",
        "env -S 'sh -c' {{$.x}}",
        'env -S "python3 -c" {{$.x}}',
        ["env", "-S", "sh -c", "{{$.x}}"],
        "timeout 5 {{$.x}}",
        "xargs {{$.x}}",
        "find . -exec {{$.x}} ';'",
        "sh -c 'echo {{$.x}}'",
        '/bin/bash -ec "echo {{$.x}}"',
        "eval echo {{$.x}}",
        "ssh host {{$.x}}",
        "python3 -c 'print({{$.x}})'",
        "awk '/{{$.x}}/' f",
        "sed s/a/{{$.x}}/ f",
        "cat <<END\n{{$.x}}\nEND",
        "echo `date -d {{$.x}}`",
        "echo $((1 + {{$.x}}))",
        "echo ${A:-{{$.x}}}",
        "echo \\{{$.x}}",
        "echo {{$.x}} | sh",
        "echo {{$.x}} | bash -s",
        "printf %s {{$.x}} | python3",
        "echo 'SELECT {{$.x}}' | psql shop",
        'sh -c "$(echo {{$.x}})"',
        "$(echo {{$.x}}) now",
        'echo "$(sh -c "$(cat {{$.x}})")"',
        'X={{$.x}}; eval "$X"',
        'X={{$.x}}; sh -c "$X"',
        "echo {{$.x}} | xargs -I% sh -c 'echo %'",
        'sh <<END\necho "{{$.x}}"\nEND',
        'echo ${A:-"{{$.x}}"}',
        "echo a # {{$.x}}",
        "sudo -u www {{$.x}}",
        "timeout 5s {{$.x}}",
        "flock /tmp/lock {{$.x}}",
        "bash {{$.x}}",
        "python3 scripts/{{$.x}}.py",
        "docker exec web sh -c {{$.x}}",
        "sed -e s/a/b/ -e {{$.x}} f",
        "make deploy VERSION={{$.x}}",
        "PATH={{$.x}} ls",
        "echo {{$.x}} | python3 -",
        "echo {{$.x}} | xargs env",
        "X={{$.x}}; $X",
        'X={{$.x}}; "${X}" now',
        "set -- {{$.x}}; $1",
        "f() { $1; }; f {{$.x}}",
        "alias now={{$.x}}\nnow",
        "git -c alias.now={{$.x}} now",
        "rsync -e {{$.x}} a b",
        "tar cf a.tar --checkpoint=1 --checkpoint-action={{$.x}} a",
        "tar -I {{$.x}} -cf a.tar a",
        "gdb -ex {{$.x}}",
        "echo {{$.x}} | at now",
        "echo {{$.x}} | crontab -",
        "echo {{$.x}} > now.sh; sh now.sh",
        "echo {{$.x}} | tee ./now.py && python3 now.py",
        'echo "{{$.x}}" >> now; chmod +x now; ./now',
        ["git", "-c", "{{$.x}}", "log"],
        ["{{$.x}}", "-l"],
        ["sh", "-c", "echo {{$.x}}"],
        ["env", "A=1", "{{$.x}}", "b"],
        ["xargs", "{{$.x}}"],
        ["python3", "-c", "print({{$.x}})"],
        ["find", ".", "-exec", "sh", "-c", "echo {{$.x}}", ";"],
        ["awk", "{{$.x}}"],
        ["bash", "{{$.x}}"],
        ["sqlite3", "shop.db", "SELECT '{{$.x}}'"],
        "ssh host '>' {{$.x}}",
        'ssh host "cat >" {{$.x}}',
        "ssh host >(cat) {{$.x}}",
        "ssh host `cat >f` {{$.x}}",
        "ssh host >'>' {{$.x}}",
        "ssh host > 'a>' {{$.x}}",
        "ssh host >\\> {{$.x}}",
        'ssh host > "a b" {{$.x}}',
        "make >log {{$.x}}",
        "make > log {{$.x}}",
        "> {{$.x}} eval {{$.x}}",
        "python3 > log -c {{$.x}}",
        "python3 $OPTIONS -c {{$.x}}",
        "python3 $(options) -c {{$.x}}",
        ["python3", "-X", "dev", "-c", "print({{$.x}})"],
        ["bash", "-o", "pipefail", "-c", "echo {{$.x}}"],
        ["bash", "+x", "-c", "echo {{$.x}}"],
        ["deno", "eval", "-p", "{{$.x}}"],
    ],
)
def test_a_command_whose_value_would_become_a_program_is_refused_when_the_file_is_loaded(command: Any) -> None:
    written = json.loads(json.dumps(command).replace("$.x", "$.payload"))
    with pytest.raises(ConfigError, match=r"nodes\[0\]\.data\.command: ") as raised:
        parse_workflow(
            {
                "mode": "trigger",
                "nodes": [{"id": "1", "typeId": "run_command", "name": "run", "data": {"command": written}}],
            },
            "f",
        )
    assert "no node of this name" not in str(raised.value)
    with pytest.raises(NodeError, match=r"node 'run', field 'command'"):
        Node("1", "run_command", "run", {"command": command})


@pytest.mark.parametrize(
    "command", ["sh", ["sh"], "bash -s", "python3 -u -", "X=1; psql shop", "xargs sh -c", "while read x; do $x; done"]
)
def test_no_program_is_read_from_an_input_with_a_value(command: Any) -> None:
    with pytest.raises(NodeError, match=r"field 'command': \{\{\$\.x\}\} is in a script"):
        node("run_command", command=command, stdin="a {{$.x}}")
    node("run_command", command=command, stdin="date")


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", 'printf %s "$1"', "sh", "{{$.x}}"],
        ["python3", "-c", "import sys; print(end=sys.argv[1])", "{{$.x}}"],
        ["env", "A={{$.x}}", "sh", "-c", 'printf %s "$A"'],
        "command printf %s {{$.x}}",
        "timeout 5s printf %s {{$.x}}",
        "$PROGRAM %s {{$.x}}",
        "sed -e s/a/a/ /dev/null; printf %s {{$.x}}",
        "python3 -c 'import sys; print(end=sys.argv[1])' {{$.x}}",
    ],
)
def test_a_program_of_the_file_itself_takes_values_as_arguments(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROGRAM", "printf")
    assert result(node("run_command", command=command), {"x": "'; touch pwned"})["stdout"] == "'; touch pwned"
    assert result(node("run_command", command="tr a b", stdin="{{$.x}}"), {"x": "a;"})["stdout"] == "b;"


@pytest.mark.parametrize(
    "words",
    [
        ["python3", "scripts/read.py", "-f", "{{$.x}}"],
        ["python3.13", "read.py", "--day", "{{$.x}}", "-e", "{{$.x}}"],
        ["node", "read.js", "-p", "{{$.x}}"],
        ["bash", "read.sh", "-c", "{{$.x}}"],
        ["docker", "exec", "web", "python", "read.py", "-c", "{{$.x}}"],
    ],
)
def test_the_options_of_a_script_take_values(words: list[str]) -> None:
    node("run_command", command=words)
    node("run_command", command=words[0], args=words[1:])


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("grep -c '{{$.a}}' log", """grep -c ''"${1}"'' log"""),
        ("find . -name {{$.a}}", 'find . -name "${1}"'),
        ("timeout 5 echo {{$.a}} {{$.b}}", 'timeout 5 echo "${1}" "${2}"'),
        ("awk -v n={{$.a}} '{print n}' f", """awk -v n="${1}" '{print n}' f"""),
        ("tee out/{{$.a}}.md", 'tee out/"${1}".md'),
        ("make -s report > {{$.a}}", 'make -s report > "${1}"'),
        ("psql -c 'select 1' >>{{$.a}}", "psql -c 'select 1' >>\"${1}\""),
        ("ssh host uptime 2> {{$.a}}", 'ssh host uptime 2> "${1}"'),
        ("python3 read.py -f {{$.a}}", 'python3 read.py -f "${1}"'),
        ("bash read.sh -c {{$.a}} > {{$.b}}", 'bash read.sh -c "${1}" > "${2}"'),
    ],
)
def test_ordinary_commands_keep_their_meaning(text: str, script: str) -> None:
    assert shell_template(text).text == script


@pytest.mark.parametrize(
    "query",
    [
        'SELECT * FROM "{{$.x}}"',
        "{{$.x}}",
        " {{$.x}} ",
        "SELECT 1 -- {{$.x}}",
        "SELECT $$ {{$.x}} $$",
        "SELECT E'{{$.x}}'",
        "SELECT /* {{$.x}} */ 1",
        "SELECT U&'{{$.x}}'",
        "SELECT query_to_xml('SELECT ''{{$.x}}''', true, true, '')",
        "SELECT * FROM dblink('dbname=x', {{$.x}}) AS t(n int)",
        "SELECT * FROM ts_stat('SELECT ' || {{$.x}})",
    ],
)
def test_sql_in_which_no_value_can_be_bound_is_refused(query: str) -> None:
    with pytest.raises(NodeError, match="field 'query'"):
        node("postgres_query", query=query, url="postgresql:///x")


def test_quotes_inside_an_expression_are_not_those_of_sql() -> None:
    made = sql_template("SELECT 'it''s {{$.x ?? 'd'}}', {{$.y}}", first=2)
    assert made.text == "SELECT ('it''s ' || ($2)::text), $3"
    assert made.expressions == ("$.x ?? 'd'", "$.y")


async def test_a_value_in_sql_is_bound_and_read_as_its_type(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("CREATE TABLE secret (id int, name text, at date)")
    await connection.execute("INSERT INTO secret VALUES (1, 'one', '2026-01-01'), (2, 'two', '2026-02-01')")

    async def rows(query: str, item: dict[str, Any], *parameters: Any) -> list[Any]:
        asked = node("postgres_query", query=query, url=database_url, parameters=list(parameters))
        return [list(row.values()) for _, row in await run_node(asked, [item])]

    assert await rows("SELECT name FROM secret WHERE id = {{$.id}}", {"id": 2}) == [["two"]]
    assert await rows("SELECT name FROM secret WHERE id = {{$.id}}", {"id": "2"}) == [["two"]]
    assert await rows("SELECT id FROM secret WHERE name LIKE '%{{$.part}}%'", {"part": "wo"}) == [[2]]
    assert await rows("SELECT id FROM secret WHERE at > {{$.day}} AND id > $1", {"day": "2026-01-15"}, 0) == [[2]]
    assert await rows("SELECT {{$.data}}::jsonb ->> 'a'", {"data": {"a": "b"}}) == [["b"]]
    day = {"day": "2026-01-15", "n": 3, "id": "2"}
    assert await rows("SELECT id FROM secret WHERE at > '{{$.day}}' AND id = '{{$.id}}'", day) == [[2]]
    days = (
        "SELECT (date '{{$.day}}' - interval '{{$.n}} days')::date::text, interval '{{$.n}} days' = '3 days'::interval"
    )
    assert await rows(days, day) == [["2026-01-12", True]]
    texts = "SELECT concat('{{$.n}}', '{{$.id}}') AS a, '{{$.n}}' || 'x' AS b, coalesce('{{$.n}}') AS c"
    assert await rows(texts, day) == [["32", "3x", "3"]]
    await connection.execute("INSERT INTO secret VALUES (3, 'three', '2026-03-01')")
    assert await rows("UPDATE secret SET at = '{{$.day}}' WHERE id = 3 RETURNING at::text", day) == [["2026-01-15"]]
    await connection.execute("DELETE FROM secret WHERE id = 3")
    with pytest.raises(ConfigError, match="the query failed"):
        await rows("SELECT name FROM secret WHERE id = {{$.id}}", {"id": "1 OR true"})
    values = [
        "'; DROP TABLE secret; --",
        "' OR '1'='1",
        "\\'; DELETE FROM secret; --",
        "$1",
        "one' --",
        json.dumps("x"),
    ]
    for value in values:
        assert await rows("SELECT id FROM secret WHERE name = '{{$.x}}'", {"x": value}) == []
        assert await rows("SELECT {{$.x}}::text", {"x": value}) == [[value]]
    assert await connection.fetchval("SELECT count(*) FROM secret") == 2
    await connection.close()


#: A node of each kind with a value wherever a text may stand; and what it gives if the value stays one.
EVERY_KIND: dict[str, tuple[dict[str, Any], Any]] = {
    "start": ({}, lambda text: text),
    "scheduled": ({}, None),
    "webhook": ({}, lambda text: text),
    "hardwired": ({"json": '[{"name": "{{$.payload}}", "n": 1}]'}, lambda text: {"name": text, "n": 1}),
    "set": ({"fields": {"a": "{{$.payload}}", "b": ["{{$.payload}}"]}}, lambda text: {"a": text, "b": [text]}),
    "transform": ({"expression": "$.payload"}, lambda text: {"result": text}),
    "if": ({"condition": "$.payload == $.payload"}, lambda text: True),
    "http": ({"url": "{server}/?q=x", "method": "POST", "json_body": '{"a": "{{$.payload}}"}'}, None),
    "rss": ({"url": "{server}/feed?q={{$.payload}}"}, None),
    "append_to_file": (
        {"path": "log.txt", "content": "{{$.payload}}"},
        lambda text: {"written": True, "filepath": "log.txt"},
    ),
    "run_command": (
        {"command": "printf %s {{$.payload}}"},
        lambda text: {"stdout": text, "stderr": "", "returnCode": 0},
    ),
    "postgres_query": (
        {"query": "SELECT {{$.payload}}::text AS found", "url": "{database}"},
        lambda text: {"found": text},
    ),
    "llm": ({"prompt": "{{$.payload}}", "system": "{{$.payload}}"}, None),
    "claude_agent": ({"prompt": "{{$.payload}}"}, None),
    "claude_json": ({"prompt": "{{$.payload}}"}, None),
    "discord_send": ({"channel_id": "7", "message": "{{$.payload}}"}, None),
    "notification": ({"message": "{{$.payload}}", "title": "{{$.payload}}"}, lambda text: {"sent": True}),
}


def test_a_value_stays_a_value_in_every_kind_of_node(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(EVERY_KIND) <= set(NODE_TYPES)
    ours = "tidemill.pipelines.workflows.node_types"
    own = {name for name, known in NODE_TYPES.items() if not known.run.__module__.startswith(ours)}
    assert set(NODE_TYPES) - own == {*EVERY_KIND, *ASKING}, "a kind of node that this test does not try"
    monkeypatch.chdir(tmp_path)
    asked: list[bytes] = []

    def answer(request: Request) -> tuple[int, bytes]:
        asked.append(request.body)
        reply = {"content": [{"text": "1"}], "choices": [{"message": {"content": "1"}}]}
        return 200, b"<rss><item><title>t</title></item></rss>" if "feed" in request.path else json.dumps(
            reply
        ).encode()

    with receiver(answer) as server, allowing_hosts([server.url.removeprefix("http://")]):
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)

        @settings(max_examples=25)
        @given(HOSTILE)
        def try_all(text: str) -> None:
            progress = Progress()
            progress.ask(node("dialog", message="{{$.payload}}!"), [{"payload": text}])
            assert progress.questions[0].prompt == f"{text}!".strip()
            for type, (data, expected) in EVERY_KIND.items():
                filled = {
                    name: value.replace("{server}", server.url).replace("{database}", database_url)
                    if isinstance(value, str)
                    else value
                    for name, value in data.items()
                }
                held = {"discord": {"token": "bot", "url": server.url}, "notification": {"url": server.url}}
                with naming(**{"$credentials": held}):
                    found = asyncio.run(run_node(node(type, **filled), [{"payload": text}]))
                if expected is not None:
                    assert [output for _, output in found] == [expected(text)], (type, text)
                if type in ("discord_send", "notification"):
                    assert json.loads(asked[-1])["content" if type == "discord_send" else "message"] == text
                if type in ("llm", "claude_agent", "claude_json"):
                    assert json.loads(asked[-1])["messages"][-1]["content"] == text
                if type == "http":
                    assert json.loads(asked[-1]) == {"a": text}

        try_all()
    assert {each.name for each in tmp_path.iterdir()} == {"log.txt"}


@pytest.mark.parametrize("value", ["../x", "/etc/cron.d/x", "a/b", "..", ".profile", "a\0b"])
def test_a_value_in_the_path_of_a_file_leads_to_no_other_folder(value: str, tmp_path: Path) -> None:
    append = node("append_to_file", path=f"{tmp_path}/logs/{{{{$.payload}}}}.txt", content="x")
    with pytest.raises(ConfigError, match="leads to another folder"):
        asyncio.run(run_node(append, [{"payload": value}]))
    asyncio.run(run_node(append, [{"payload": "monday"}]))
    assert [each.name for each in tmp_path.rglob("*") if each.is_file()] == ["monday.txt"]


@pytest.mark.parametrize("field", ["url", "urlVariable"])
def test_no_value_chooses_the_database_of_a_query(field: str) -> None:
    with pytest.raises(NodeError, match=f"field '{field}': a value would choose the database"):
        node("postgres_query", query="SELECT 1", **{field: "{{$.payload}}"})
