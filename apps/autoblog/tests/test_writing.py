"""The auto-blog's writers: a language model over HTTP, of either kind, and the honest one without."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from apps.autoblog.logs import write_history
from apps.autoblog.reading import is_log, read_log
from apps.autoblog.site import escape_markdown, plain_text, read_post, write_feed, write_index, write_page
from apps.autoblog.voice import read_aloud
from apps.autoblog.writing import (
    OFFLINE,
    compose,
    describe_writer,
    pick_sentences,
    speak,
    split_sentences,
    summarise,
)
from tidemill.pipelines.workflows.llm import ModelCallError, ask

LOG = "10:02 INFO The importer was restarted.\n10:30 INFO Ada asked whether the importer is still needed.\n"


class Model:
    """A language model that answers with what it was asked, in both dialects."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.asked: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.status = 200


@pytest.fixture
def model() -> Iterator[Model]:
    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            known.asked.append((self.path, body, {name.lower(): value for name, value in self.headers.items()}))
            text = f"{body['model']} was asked"
            told = {"content": [{"text": text}], "choices": [{"message": {"content": text}}], "error": "no more"}
            self.send_response(known.status)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Answering)
    known = Model(f"http://127.0.0.1:{server.server_port}")
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    serving.start()
    yield known
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "TIDEMILL_LLM_MODEL"):
        monkeypatch.delenv(name, raising=False)


async def test_a_model_of_anthropics_writes_when_there_is_a_key(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", model.address)
    monkeypatch.setenv("TIDEMILL_LLM_MODEL", "wise")
    assert describe_writer() != OFFLINE
    assert await summarise("2026-01-15", [LOG], describe_writer()) == "wise was asked"
    ((path, body, headers),) = model.asked
    assert (path, headers["x-api-key"]) == ("/v1/messages", "secret")
    assert "The importer was restarted." in body["messages"][0]["content"]


async def test_any_server_that_speaks_as_openais_does_may_write(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_BASE_URL", f"{model.address}/v1/")
    assert "title: 2026-01-15\n" in (post := await compose("2026-01-15", "All went well.", describe_writer()))
    assert post.rstrip().endswith(" was asked")
    ((path, _, headers),) = model.asked
    assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer secret")


def test_a_model_that_refuses_is_told_with_what_it_said(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("OPENAI_BASE_URL", model.address)
    model.status = 429
    with pytest.raises(ModelCallError, match=r"rejected the request \(429\).*no more"):
        ask("anything")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ModelCallError, match="set ANTHROPIC_API_KEY or OPENAI_API_KEY"):
        ask("anything")


async def test_without_a_key_every_sentence_is_one_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    assert describe_writer() == OFFLINE
    picked = pick_sentences(read_log("a.log", LOG), 5)
    assert picked == ["The importer was restarted.", "Ada asked whether the importer is still needed."]
    assert "offline" in await compose("2026-01-15", await summarise("2026-01-15", [LOG], OFFLINE), OFFLINE)


def test_what_is_nearly_the_same_is_said_once_with_how_many_there_were() -> None:
    log = "\n".join(
        f"10:0{n} INFO The importer lost its connection {n}0 times and recovered by itself." for n in range(5)
    )
    picked = pick_sentences(read_log("a.log", f"{log}\n11:00 INFO Ada fixed the cable."), 5)
    assert picked == [
        "The importer lost its connection 00 times and recovered by itself (and 4 more like it).",
        "Ada fixed the cable.",
    ]


def test_lines_that_differ_in_a_name_are_one_kind_and_notes_of_people_come_first() -> None:
    log = "\n".join(
        f"10:0{n} INFO The {what} was restarted after its memory had grown to {n}00 MB."
        for n, what in enumerate(("importer", "mail gateway", "archive", "importer"))
    )
    note = (
        "Met with the harbour team.\nThe deploy failed twice: OOM at 14:02.\nThe deploy failed twice: OOM at 14:05.\n"
    )
    assert pick_sentences(read_log("a.log", f"{log}\n{note}"), 5) == [
        "Met with the harbour team.",
        "The deploy failed twice: OOM at 14:02 (and 1 more like it).",
        "The importer was restarted after its memory had grown to 000 MB "
        "(and 3 more like it, among them mail gateway, archive).",
    ]


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (["mail gateway", "archive"], "and 2 more like it: mail gateway, archive"),
        (["archive", "archive"], "and 2 more like it, among them archive"),
        (["importer", "importer"], "and 2 more like it"),
    ],
)
def test_names_stand_for_all_that_are_counted_or_are_said_to_be_some(others: list[str], told: str) -> None:
    log = "\n".join(
        f"10:00 INFO The {what} was restarted after its memory had grown." for what in ["importer", *others]
    )
    assert pick_sentences(read_log("a.log", log), 5) == [
        f"The importer was restarted after its memory had grown ({told})."
    ]


#: Lines of logs that mean something in Markdown.
MARKS = [
    "__init__ of *all* modules was `moved`", "see [the wiki](http://wiki.example) or <http://wiki.example>",
    "# not a title", "- not a list", "+ not a list", "1) not a list", "> not a quote", "```", "a \\* b", "&copy; 2026",
    "![x](y.png)", "---", "<script>alert(1)</script>", "a | b ~~c~~", "1.5 seconds", "=====",
]  # fmt: skip


@pytest.mark.parametrize("line", MARKS)
async def test_a_line_of_a_log_is_shown_as_it_is(line: str) -> None:
    page = MarkdownIt("commonmark", {"html": False}).render(f"- {escape_markdown(line)}")
    assert page == f"<ul>\n<li>{escapeHtml(line)}</li>\n</ul>\n"
    assert plain_text(f"- {escape_markdown(line)}") == line
    post = await compose("2026-01-15", f"2026-01-15, from 1 logs. {line}.", OFFLINE)
    assert f"<li>{escapeHtml(line)}.</li>" in write_page(read_post("2026-01-15", post), [], audio=False)
    assert f"\n{line}.\n" in await speak("2026-01-15", post, OFFLINE)


def test_an_author_in_brackets_does_not_make_commits_alike() -> None:
    log = "10:00 INFO Formatting (Ada Lovelace King).\n10:01 INFO Faster joins (Ada Lovelace King)."
    assert pick_sentences(read_log("a.log", log), 5) == [
        "Formatting (Ada Lovelace King).",
        "Faster joins (Ada Lovelace King).",
    ]


async def test_a_post_becomes_a_page_an_entry_of_the_index_and_of_the_feed() -> None:
    text = await compose(
        "2026-01-15", "2026-01-15, from 1 logs.\nAda fixed <b>it</b>.\nGrace asked whether it holds.", OFFLINE
    )
    post = read_post("2026-01-15", text)
    assert (post.title, post.summary) == ("Ada fixed <b>it</b>", "Grace asked whether it holds.")
    page = write_page(post, ["2026-01-12", "2026-01-15", "2026-01-16"], audio=True)
    assert '<a rel="prev" href="2026-01-12.html">' in page
    assert '<a rel="next" href="2026-01-16.html">' in page
    assert 'class="lead"' not in page  # The body says it.
    assert "<h2>What was done</h2>" in page
    assert "<h2>What is open</h2>" in page
    assert "<b>it</b>" not in page
    assert 'src="../audio/2026-01-15.wav"' in page
    assert "Thursday, 15 January 2026" in page
    newer = read_post("2026-01-16", "# A title\n\nA line.")
    index = write_index([post, newer])
    assert index.index("2026-01-16") < index.index("2026-01-15")
    feed = ElementTree.fromstring(write_feed([post, newer], "https://blog.example/", audio=True))
    titles = [each.text for each in feed.iter("{http://www.w3.org/2005/Atom}title")]
    assert titles == ["Daily digest", "A title", "Ada fixed <b>it</b>"]
    links = [each.get("href", "") for each in feed.iter("{http://www.w3.org/2005/Atom}link")]
    assert "https://blog.example/audio/2026-01-15.wav" in links


async def test_the_pictures_of_a_day_are_in_its_post_and_nothing_is_said_twice() -> None:
    log = "\n".join(f"The {part} was {deed}." for part, deed in zip(
        ("importer", "archive", "gauge", "index", "mail", "report", "mill"),
        ("restarted", "moved", "lost", "changed", "read", "written", "built"), strict=True))  # fmt: skip
    summary = await summarise("2026-01-15", [log], OFFLINE, ["new wheel.png"])
    post = read_post("2026-01-15", await compose("2026-01-15", summary, OFFLINE))
    page = write_page(post, ["2026-01-15"], audio=False)
    assert '<img src="../images/2026-01-15/new%20wheel.png" alt="new wheel"' in page
    feed = write_feed([post], "https://blog.example/", audio=False)
    assert "https://blog.example/images/2026-01-15/new%20wheel.png" in feed
    article = page.partition("<article>")[2]
    assert all(article.count(f"The {part} was") == 1 for part in ("importer", "archive", "gauge", "index", "mill"))
    assert "wheel" not in await speak("2026-01-15", await compose("2026-01-15", summary, OFFLINE), OFFLINE)


def test_any_program_may_read_aloud_and_one_that_fails_says_why(tmp_path: Path) -> None:
    voice = tmp_path / "voice.py"
    voice.write_text("import sys; open(sys.argv[1], 'wb').write(b'RIFF' + sys.stdin.buffer.read())")
    assert read_aloud("hello", f"{sys.executable} {voice} {{file}}") == b"RIFFhello"
    with pytest.raises(RuntimeError, match="wrote no WAV file"):
        read_aloud("", f"{sys.executable} -c \"import sys; open(sys.argv[1], 'w')\" {{file}}")
    with pytest.raises(RuntimeError, match=r"ended with 3: no tongue"):
        read_aloud("", f"{sys.executable} -c \"import sys; sys.stderr.write('no tongue'); sys.exit(3)\"")


def test_a_git_history_becomes_the_logs_of_its_days(tmp_path: Path) -> None:
    def git(*command: str) -> None:
        named = {
            "GIT_AUTHOR_NAME": "Ada",
            "GIT_COMMITTER_NAME": "Ada",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        dated = {"GIT_AUTHOR_DATE": "2026-01-15T10:02:00", "GIT_COMMITTER_DATE": "2026-01-15T10:02:00"}
        subprocess.run(
            ["git", *command], cwd=tmp_path, check=True, capture_output=True, env={**os.environ, **named, **dated}
        )

    git("init", "-q", "project")
    git("-C", "project", "commit", "-q", "--allow-empty", "-m", "The importer is restarted by itself")
    git("-C", "project", "checkout", "-q", "-b", "side")
    git("-C", "project", "commit", "-q", "--allow-empty", "-m", "Tests run again")
    git("-C", "project", "checkout", "-q", "-b", "other", "HEAD~1")
    git("-C", "project", "merge", "-q", "--no-ff", "-m", "Merge branch 'side'", "side")
    assert write_history(tmp_path / "out", tmp_path / "project", date(2026, 1, 1)) == 1
    assert (tmp_path / "out/daily/2026-01-15/project.txt").read_text() == (
        "10:02 INFO The importer is restarted by itself.\n10:02 INFO Tests run again.\n"
    )


async def test_a_sentence_is_under_a_heading_that_fits_it() -> None:
    done = [
        "A job that runs again has its answers in order.", "The check asks whether the server lives.",
        "Workers no longer keep a connection open.", "The door opens later.",
    ]  # fmt: skip
    said = "\n".join(
        ["The title.", "The lead.", "Its end.", *done, "The pump failed.", "Ada wants to see it tomorrow."]
    )
    body = read_post("2026-01-15", await compose("2026-01-15", said, OFFLINE)).body
    wrong, left, rest = body.split("## ")[1:]
    assert (wrong.split("\n\n")[:2], left.split("\n\n")[:2]) == (
        ["What went wrong", "- The pump failed."], ["What is open", "- Ada wants to see it tomorrow."],
    )  # fmt: skip
    assert rest.split("\n\n")[1].splitlines() == [f"- {sentence}" for sentence in done]


async def test_notes_in_markdown_and_logs_with_full_time_stamps_are_read_without_their_marks() -> None:
    notes = '# Saturday\n\n- [x] Met **Ada** about `tide_gauge`.\n> "It failed twice."\n\n1. Wrote the guide\n'
    assert split_sentences(read_log("notes.md", notes)) == [
        "Met Ada about tide_gauge.", '"It failed twice."', "Wrote the guide.",
    ]  # fmt: skip
    lines = "2026-11-14T06:00:01Z INFO started\n2026-11-14 06:03:12,345 [ERROR] no space left\n[06:04] ready\n"
    assert split_sentences(read_log("server.log", lines)) == ["INFO started.", "ERROR no space left.", "INFO ready."]
    assert [is_log(name) for name in ("a.TXT", "b.md", "c.log", "d.png", "e.bin")] == [True, True, True, False, False]


async def test_a_day_with_pictures_only_has_a_post_that_does_not_quote_their_markup() -> None:
    summary = await summarise("2026-01-15", [], OFFLINE, ["tide.png"])
    post = read_post("2026-01-15", await compose("2026-01-15", summary, OFFLINE))
    assert post.title == "A quiet day"
    assert "![" not in write_index([post])
    assert 'src="../images/2026-01-15/tide.png"' in write_page(post, ["2026-01-15"], audio=False)


async def test_the_index_does_not_repeat_a_title() -> None:
    summary = await summarise("2026-01-15", ["One line only.\n"], OFFLINE)
    post = read_post("2026-01-15", await compose("2026-01-15", summary, OFFLINE))
    assert write_index([post]).count("One line only") == 1
