"""`tidemill pipeline` as a user has it: real commands in a folder with pipelines."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import eventually
from tests.support.cli import ROOT, Process, environment, make_folder, ok, run
from tests.support.pipelines import put, tree

APP = """
from tidemill import App
from tidemill.pipelines import Pipeline

app = App("blog")
blog = Pipeline("blog", root="states")


@blog.stage(input="logs/{date:date}.txt", output="summary/{date}.txt", in_process=True)
def summary(entity, text):
    if "bad" in text:
        raise ValueError("cannot be summed up")
    return text.upper()


@blog.stage(input="summary/{date:date}.txt", output="post/{date}.md", in_process=True)
def post(entity, text):
    return "# " + text


app.pipeline(blog)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, module_database_url: str) -> Path:
    made = make_folder(tmp_path_factory.mktemp("blog"), APP, module_database_url)
    put(made / "states", {"logs/2026-01-15.txt": "fair", "logs/2026-01-16.txt": "bad", "logs/2026-01-17.txt": "calm"})
    return made


def counts(status: Any) -> dict[str, dict[str, int]]:
    """How many states of each stage are fresh, stale, failed and so on."""
    return {stage["name"]: stage["counts"] for stage in status["stages"]}


def settled(found: list[Any]) -> list[Any]:
    """What is told of pipelines, without what differs from one look to the next."""
    return [{name: value for name, value in each.items() if name not in ("looked_at", "took")} for each in found]


def test_a_day_with_a_pipeline(folder: Path) -> None:
    first = run(folder, "pipeline", "run", "app.py", "--once")
    assert first.returncode == 1, first.stderr
    assert "4 fresh, 2 not" in first.stdout
    assert "ValueError: cannot be summed up" in first.stdout
    assert tree(folder / "states")["post/2026-01-15.md"] == "# FAIR"

    (status,) = json.loads(ok(folder, "pipeline", "status", "app.py", "--json"))
    assert counts(status) == {"summary": {"fresh": 2, "failed": 1}, "post": {"fresh": 2, "blocked": 1}}
    assert status["stages"][0]["bytes"] == 8

    checked = run(folder, "pipeline", "check", "app.py")
    assert (checked.returncode, checked.stdout) == (1, "blog: 4 fresh, 2 not\n")

    (plan,) = json.loads(ok(folder, "pipeline", "plan", "app.py", "--json"))
    assert [(step["stage"], step["reason"]) for step in plan["steps"]] == [
        ("summary", "backing_off"),
        ("post", "blocked"),
    ]

    assert "1 failed states are retried" in ok(folder, "pipeline", "retry", "app.py", "summary/2026-01-16")
    (plan,) = json.loads(ok(folder, "pipeline", "plan", "app.py", "--json"))
    assert [(step["path"], step["reason"]) for step in plan["steps"] if step["is_build"]] == [
        ("summary/2026-01-16.txt", "missing")
    ]

    put(folder / "states", {"logs/2026-01-16.txt": "good"})
    assert ok(folder, "pipeline", "run", "app.py", "--once").startswith("blog: 6 fresh, 0 not")

    told = ok(folder, "explain", "summary/2026-01-16.txt", "--app", "app.py", "--forward", "--json")
    story = json.loads(told)["details"]
    assert [each["id"] for each in json.loads(told)["followed"]] == ["blog/post/2026-01-16"]
    assert story["state"] == "fresh"
    assert [build["outcome"] for build in story["builds"]] == ["built", "failed"]
    assert story["followed_by"] == ["post/2026-01-16"]
    told = ok(folder, "explain", "post/2026-01-16.md", "--app", "app.py")
    assert "made by summary" in told
    assert "It is up to date" in told

    assert "2 states will be built again" in ok(
        folder, "pipeline", "invalidate", "app.py", "summary/2026-01-15", "--downstream"
    )
    assert "invalidated by" in ok(folder, "pipeline", "plan", "app.py")
    assert "2 states will be built again" in ok(
        folder, "pipeline", "backfill", "app.py", "summary", "--first", "2026-01-16", "--last", "2026-01-17"
    )
    assert "3 to build" in ok(folder, "pipeline", "plan", "app.py")

    ok(folder, "pipeline", "pause", "app.py", "blog/summary")
    assert "it is paused by" in ok(folder, "pipeline", "plan", "app.py")
    ok(folder, "pipeline", "resume", "app.py", "blog/summary")
    ok(folder, "pipeline", "run", "app.py", "--once")

    (folder / "states/logs/2026-01-17.txt").unlink()
    listed = ok(folder, "pipeline", "clean", "app.py")
    assert "summary/2026-01-17.txt" in listed
    assert "add --how archive or --how delete, and --yes" in listed, "its stage keeps them"
    assert "summary/2026-01-17.txt" in tree(folder / "states")
    ok(folder, "pipeline", "clean", "app.py", "--how", "delete", "--yes")
    assert "summary/2026-01-17.txt" not in tree(folder / "states")

    (folder / "states").rename(folder / "away")
    refused = run(folder, "pipeline", "clean", "app.py", "--how", "delete", "--yes")
    assert refused.returncode == 1
    assert "there is no folder" in refused.stderr + refused.stdout, "what cannot be seen from here is not gone"
    (folder / "away").rename(folder / "states")

    (folder / "next.py").write_text(APP)
    renamed = run(folder, "deploy", "check", "next.py").stdout
    assert "only the name of its module has changed: in a file that is called app.py" in " ".join(renamed.split())
    (folder / "app.py").write_text(APP.replace('"# " + text', '"## " + text'))
    told = run(folder, "deploy", "check", "app.py").stdout
    assert "the code of the stage has changed: app.post" in " ".join(told.split())
    assert "its code changed: app.post" in ok(folder, "pipeline", "plan", "app.py")
    assert "now count as built by the current code" in ok(folder, "pipeline", "accept", "app.py", "post", "--yes")
    assert "0 to build" in ok(folder, "pipeline", "plan", "app.py")
    assert "failed" in ok(folder, "pipeline", "history", "app.py")
    assert "pipeline.accept" in ok(folder, "audit")


async def test_up_keeps_pipelines_going_and_a_backfill_shows_how_far_it_is(tmp_path: Path, database_url: str) -> None:
    here = make_folder(tmp_path, APP, database_url)
    put(here / "states", {"logs/2026-01-15.txt": "fair"})
    post = here / "states/post/2026-01-15.md"
    up = Process(here, "up", "app.py", "--no-server")
    try:
        await eventually(lambda: post.exists() and post.read_text() == "# FAIR")
        put(here / "states", {"logs/2026-01-15.txt": "stormy"})
        await eventually(lambda: post.read_text() == "# STORMY")
        done = ok(here, "pipeline", "backfill", "app.py", "summary", "--wait")
        assert "1 states were built again" in done
        (told,) = json.loads(ok(here, "pipeline", "history", "app.py", "summary", "--limit", "1", "--json"))
        assert told["reason"].endswith(", backfill 1")
    finally:
        up.close()
    late = run(here, "pipeline", "backfill", "app.py", "summary", "--wait")
    assert late.returncode == 1
    assert "no process keeps pipeline blog up to date" in late.stderr


async def test_a_server_tells_of_pipelines_and_has_states_built_again(tmp_path: Path, database_url: str) -> None:
    here, away = make_folder(tmp_path / "here", APP, database_url), make_folder(tmp_path / "away", "")
    put(here / "states", {"logs/2026-01-15.txt": "fair", "logs/2026-01-16.txt": "bad"})
    up = Process(here, "up", "app.py", "--trust-local")
    try:
        server = ("--server", up.line("serving http").split()[-1])

        def there(*arguments: str) -> str:
            return ok(away, "pipeline", *arguments, *server)

        def both(command: str, *word: str) -> tuple[Any, Any]:
            stored = ok(here, "pipeline", command, "app.py", *word, "--json")
            return json.loads(stored), json.loads(there(command, *word, "--json"))

        def agree() -> bool:
            stored, served = both("status", "blog")
            stages = {"summary": {"fresh": 1, "failed": 1}, "post": {"fresh": 1, "blocked": 1}}
            return settled(stored) == settled(served) and counts(stored[0]) == stages

        await eventually(agree)
        assert "failed" in there("status").splitlines()[1]
        assert "ValueError: cannot be summed up" in ok(away, "explain", "summary/2026-01-16", *server)
        stored = ok(here, "explain", "summary/2026-01-15", "--app", "app.py", "--json")
        served = ok(away, "explain", "summary/2026-01-15", *server, "--json")
        assert settled([json.loads(served)["details"]]) == settled([json.loads(stored)["details"]])
        stored, served = both("history", "post/2026-01-15")
        assert [build["outcome"] for build in stored] == ["built"]
        assert stored == served

        assert there("pause", "blog/post") == "blog/post is paused\n"
        for (status,) in both("status"):
            assert [stage["name"] for stage in status["stages"] if stage["paused_by"]] == ["post"]
        assert there("resume", "post") == "post is resumed\n"
        assert there("retry", "blog/summary/2026-01-16") == "blog: 1 failed states are retried\n"
        assert there("invalidate", "summary/2026-01-15", "--downstream").startswith("2 states will be built again")
        backfilled = there("backfill", "summary", "--first", "2026-01-15", "--last", "2026-01-15", "--wait")
        assert "1 states were built again" in backfilled
        assert "now count as built by the current code" in there("accept", "post", "--yes")
        assert there("approve", "blog/post").startswith("approved for a day: states of post")
        assert run(away, "pipeline", "check", *server).stdout.startswith("blog: ")
        stored, served = both("plan")
        assert settled(stored) == settled(served)
        assert there("draw") == ok(here, "pipeline", "draw", "app.py")
        assert there("draw", "--live").startswith("flowchart")
        (here / "states/logs/2026-01-15.txt").unlink()
        await eventually(lambda: "archive" in there("clean", "--how", "archive"))
        assert "1 archived" in there("clean", "--how", "archive", "--yes")
        assert "summary/2026-01-15.txt" not in tree(here / "states")
        trail = {entry["action"] for entry in json.loads(ok(here, "audit", "--json"))}
        done = {"pause", "resume", "retry", "invalidate", "backfill", "accept", "approve", "clean"}
        assert {f"pipeline.{verb}" for verb in done} <= trail

        for arguments, why in (
            (
                ("explain", "sumary/2026-01-15"),
                "is not a state of pipeline blog: write the path of an output, or STAGE/ENTITY",
            ),
            (("status", "app.py", "blog"), "the server has the application: leave out 'app.py'"),
            (("status", "blgo"), "there is no pipeline 'blgo'; there are: blog"),
            (("approve", "blog"), "pipeline blog has no stage 'blog'"),
            (("pause", "2026-01-15"), "pipeline blog has no stage '2026-01-15'"),
            (("invalidate", "2026-01-30"), "has no state '2026-01-30'; the stages are "),
            (("plan", "app.py"), "there is no pipeline 'app.py'; there are: blog"),
        ):
            refused = run(away, *(() if arguments[0] == "explain" else ("pipeline",)), *arguments, *server)
            assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1), refused.stderr
            assert why in refused.stderr, arguments
    finally:
        up.close()


def test_a_pipeline_is_drawn(folder: Path) -> None:
    drawn = ok(folder, "pipeline", "draw", "app.py")
    assert drawn.startswith("flowchart TD")
    assert "n0 --> n1" in drawn
    assert ok(folder, "pipeline", "draw", "app.py", "--svg").startswith("<svg")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("explain", "nothing", "--app", "app.py"), "is not a state of pipeline blog"),
        (("explain", "post/nothing/at/all", "--app", "app.py"), "makes no 'nothing/at/all'"),
        (("pause", "app.py", "blog/other"), "has no stage 'other'"),
        (("status", "app.py", "podcast"), "there is no pipeline 'podcast'; there are: blog"),
        (("clean", "app.py", "--how", "burn"), "not one of keep, archive, delete"),
        (("status", "missing.py"), "there is no file missing.py"),
        (("plan", "broken.json"), "is not JSON"),
        (("check", "nothing.py"), "declares no pipeline"),
        (("trigger", "flow.json"), "is a pipeline"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(folder: Path, arguments: tuple[str, ...], told: str) -> None:
    (folder / "broken.json").write_text("{")
    (folder / "nothing.py").write_text("")
    (folder / "flow.json").write_text(json.dumps(FLOW))
    done = run(folder, *(() if arguments[0] == "explain" else ("pipeline",)), *arguments)
    assert done.returncode == 1
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


FLOW = {
    "mode": "pipeline",
    "stateRoot": "flows",
    "nodes": [
        {"id": "scan", "typeId": "state_scan", "name": "scan", "data": {"pattern": "in/{id}.txt"}},
        {"id": "wr", "typeId": "state_write", "name": "wr",
         "data": {"pattern": "out/{{$.scan.id}}.txt", "content": "{{$.scan.content.toUpperCase()}}"}},
    ],
    "connections": [{"sourceNodeId": "scan", "targetNodeId": "wr"}],
}  # fmt: skip


def test_workflow_files_are_run_without_any_python(tmp_path: Path) -> None:
    put(tmp_path, {"flows/in/a.txt": "apple", "w/flow.json": json.dumps(FLOW)})
    assert ok(tmp_path, "pipeline", "run", "w", "--once").startswith("flow: 1 fresh, 0 not")
    assert tree(tmp_path / "flows")["out/a.txt"] == "APPLE"
    put(tmp_path, {"once.json": json.dumps({"nodes": [{"id": "a", "typeId": "set", "data": {"x": "{{$.payload}}"}}]})})
    assert json.loads(ok(tmp_path, "pipeline", "trigger", "once.json", '"hi"')) == {"a": [{"x": "hi"}]}


def test_a_workflow_with_credentials_says_that_there_is_no_database(tmp_path: Path, empty_database_url: str) -> None:
    notice = {"mode": "trigger", "nodes": [{"id": "n", "typeId": "notification", "data": {"message": "hi"}}]}
    put(tmp_path, {"notice.json": json.dumps(notice)})
    for at, told in (
        ((), "there is no database here yet"),
        (("--database-url", empty_database_url), "run `tidemill db migrate`"),
    ):
        done = run(tmp_path, "pipeline", "trigger", "notice.json", *at)
        assert done.returncode == 1
        assert told in done.stderr
        assert not (tmp_path / ".tidemill").exists()


def test_the_auto_blog_is_built_from_generated_logs(tmp_path: Path) -> None:
    logs = [sys.executable, "-m", "apps.autoblog.logs", "output", "--days", "3", "--until", "2026-02-01"]
    subprocess.run(logs, cwd=tmp_path, env=environment(), check=True, capture_output=True)
    for app in ("apps.autoblog.app", "apps.autoblog.from_file"):
        done = run(tmp_path, "pipeline", "run", app, "--once")
        assert done.returncode == 0, done.stdout + done.stderr
    made = tree(tmp_path / "output")
    assert made["blog/2026-02-01.md"].startswith("---\ntitle: ")
    assert "date: 2026-02-01\n---\n" in made["blog/2026-02-01.md"]
    assert made["site/index.html"].index("posts/2026-02-01.html") < made["site/index.html"].index(
        "posts/2026-01-30.html"
    )
    assert '<time datetime="2026-01-31">Saturday, 31 January 2026</time>' in made["site/posts/2026-01-31.html"]
    assert made["site/feed.xml"].count("<entry>") == 3
    assert made["month/2026-01.md"].startswith("# 2026-01: 2 posts")
    assert made["podcast/2026-01-31.txt"].startswith("Welcome to the digest of Saturday, 31 January 2026.")
    assert json.loads(made["audio/2026-01-31.json"])[0]["seconds"] > 0
    assert "offline" in made["final/2026-01-30-daily-digest.md"]
    sentence = made["summary/2026-02-01.txt"].splitlines()[1].partition(" (and")[0]
    assert sentence in "".join(text for path, text in made.items() if path.startswith("daily/2026-02-01/host"))
    assert (ROOT / "apps/autoblog/README.md").exists()


BOOKS = """
from tidemill.pipelines import Pipeline

books = Pipeline("my books", root="books")


@books.stage(input="book/{id}.txt", output="page/{id}/{n:int}.txt", scatter=True, version="1")
def pages(entity, text):
    return dict(enumerate(text.split(), 1))


@books.stage(input={"text": "book/{id}.txt", "ok": "ok/{id}.txt"}, output="out/{id}.txt", version="1")
def printed(entity, text, ok):
    return text
"""


def test_explanations_and_plans_at_the_terminal_leave_nothing_out(folder: Path) -> None:
    (folder / "books.py").write_text(BOOKS)
    put(folder / "books", {"book/a\nfresh one.txt": "one two"})
    ok(folder, "pipeline", "run", "books.py", "--once")
    said = ok(folder, "explain", "page/a\nfresh one/9.txt", "--app", "books.py")
    lines = said.splitlines()
    assert lines[0].split() == ["my", "books/pages/a\\nfresh", "one", "fresh"]
    assert "There is no page/a\n" in said
    assert "  output   page/a\\nfresh one/1.txt" in lines
    plan = ok(folder, "pipeline", "plan", "books.py").splitlines()
    assert plan[0] == "my books: 0 to build, 0 held, 1 without all inputs, 1 fresh, 0 orphans"
    assert any("it waits for ok/a\\nfresh one.txt" in line for line in plan)
    ok(folder, "pipeline", "check", "books.py")
