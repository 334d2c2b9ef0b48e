"""Any name that a file can have is the name of its state, from the folder to the command line and the API."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.support.pipelines import held, put, tree, update, wanted
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.operator.local import Local
from tidemill.ops.pipelines.states import GetPipelineGrid, GetState, get_pipeline_grid, get_state
from tidemill.pipelines import Pipeline
from tidemill.pipelines.runner.build_job import enqueue_builds
from tidemill.pipelines.runner.driver import Driver
from tidemill.pipelines.runner.running_builds import builds_under_way
from tidemill.pipelines.view.pipeline_view import read_and_plan
from tidemill.store.database import Database

NAMES = [
    "a%20b", "a%2520b", "100%", "%", "%%s", "%(id)s", "a b", " a ", "it's", 'say "x"', "tab\there", "line\nbreak",
    "a\rb", "a\\b", "a\\nb", "ü", "u\u0308", "日本", "😀", "-rf", "--", "*", "[x]", "{y}", "{entity}", "{", "{}",
    "$HOME", "a;b", "#1", "?q=1&r", "a+b", "~", "[red]bold", "\x1f", "\x7f", "a...b", "CON", "<b>", "n" * 200,
    "é" * 100, "+", "@me", "a:b", "null", "1", "007",
]  # fmt: skip


def chain(root: Path) -> Pipeline:
    pipeline = Pipeline("p", root=root, approve_above=None)

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", version="1")
    def first(entity, text):
        assert entity["id"] == entity.id
        return text

    @pipeline.stage(input="mid/{id}.txt", output="page/{id}/{n:int}.txt", scatter=True, version="1")
    def pages(entity, text):
        return {1: entity.id, 2: entity.id}

    @pipeline.stage(input="page/{id}/{n:int}.txt", output="out/{id}.txt", collect="n", version="1")
    def last(entity, files):
        return "|".join(file.text() for file in files)

    return pipeline


async def test_every_name_comes_back_as_itself(tmp_path: Path, database: Database) -> None:
    put(tmp_path, {f"in/{name}.txt": name for name in NAMES})
    plan = await update(database, chain(tmp_path))
    assert (wanted(plan), held(plan), plan.problems) == ({}, {}, [])
    assert {path for path in tree(tmp_path) if path.startswith("out/")} == {f"out/{name}.txt" for name in NAMES}
    rows = await database.fetch("SELECT entity FROM tidemill.state WHERE stage = 'first'")
    assert {row["entity"] for row in rows} == set(NAMES)
    manifest = json.loads((tmp_path / "mid/.manifest.json").read_text())["states"]
    assert set(manifest) == {f"{name}.txt" for name in NAMES}
    again = Driver(database, chain(tmp_path))
    plan = await again.begin()
    assert (wanted(plan), plan.orphans, plan.fresh) == ({}, [], dict.fromkeys(("first", "pages", "last"), len(NAMES)))
    await database.fetch("DELETE FROM tidemill.state")
    await update(database, chain(tmp_path))
    rows = await database.fetch("SELECT outcome FROM tidemill.state_build WHERE stage = 'first'")
    assert Counter(row["outcome"] for row in rows) == {"built": len(NAMES), "adopted": len(NAMES)}


async def test_every_name_is_the_key_of_its_build(app: App, tmp_path: Path, database: Database) -> None:
    names = [*NAMES, f"{'d' * 200}/" * 9 + "e" * 180]
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id:**}/x.txt", output="out/{id:**}/x.txt", version="1")
    def only(entity, text):
        return text

    put(tmp_path, {f"in/{name}/x.txt": name for name in names})
    app.pipeline(pipeline)
    _, plan = await read_and_plan(database, pipeline)
    await enqueue_builds(database, app.pipelines.task_of(only), plan.builds, "root")
    rows = await database.fetch("SELECT unique_key FROM tidemill.job WHERE task = 'p/only'")
    assert {row["unique_key"] for row in rows} == set(names)
    assert set(await builds_under_way(database, pipeline, [only])) == {("only", name) for name in names}


async def test_every_name_is_found_by_operations(app: App, tmp_path: Path, database: Database) -> None:
    put(tmp_path, {f"in/{name}.txt": name for name in NAMES})
    app.pipeline(chain(tmp_path))
    await update(database, app.pipelines.require("p"))
    at = Local(database, Caller("me", "admin"), app.declarations)
    grid = await at.do(get_pipeline_grid, GetPipelineGrid(name="p", by="id", limit=200))
    assert {row.entity for row in grid.items} == set(NAMES)
    for name in NAMES:
        found = await at.do(get_state, GetState(name="p", stage="last", entity=name))
        assert (found.state, found.variables["id"], found.outputs[0].path) == ("fresh", name, f"out/{name}.txt")
        told = await at.do(explain, ExplainObject(id=f"out/{name}.txt"))
        assert (told.state, told.details and told.details.entity) == ("fresh", name)


async def test_files_of_the_same_name_in_several_folders_are_entities_of_their_own(
    tmp_path: Path, database: Database
) -> None:
    pipeline = Pipeline("site", root=tmp_path)

    @pipeline.stage(input="src/{path:**}/{name}.md", output="site/{path:**}/{name}.html", version="1")
    def page(entity, text):
        return f"{entity.output_path} {entity.path!r} {text}"

    @pipeline.stage(input="site/{path:**}/{name}.html", output="index/{path:**}/list.txt", collect="name", version="1")
    def index(entity, files):
        return str(sorted(file.name for file in files))

    sources = {"x.md": "top", "a/x.md": "one", "a/y.md": "why", "a/b/x.md": "two", ".hidden/x.md": "-"}
    put(tmp_path / "src", sources)
    plan = await update(database, pipeline)
    assert (wanted(plan), held(plan), plan.problems) == ({}, {}, [])
    made = {path: text for path, text in tree(tmp_path).items() if not path.startswith("src/")}
    assert made == {
        "site/x.html": "site/x.html '' top",
        "site/a/x.html": "site/a/x.html 'a' one",
        "site/a/y.html": "site/a/y.html 'a' why",
        "site/a/b/x.html": "site/a/b/x.html 'a/b' two",
        "index/list.txt": "['x.html']",
        "index/a/list.txt": "['x.html', 'y.html']",
        "index/a/b/list.txt": "['x.html']",
    }
    rows = await database.fetch("SELECT stage, entity FROM tidemill.state ORDER BY 1, 2")
    assert [tuple(row) for row in rows] == [
        ("index", "."), ("index", "a"), ("index", "a/b"),
        ("page", "./x"), ("page", "a/b/x"), ("page", "a/x"), ("page", "a/y"),
    ]  # fmt: skip
    assert (await update(database, pipeline)).steps == []
    put(tmp_path, {"src/a/x.md": "new"})
    await update(database, pipeline)
    assert tree(tmp_path)["site/a/x.html"] == "site/a/x.html 'a' new"
    assert tree(tmp_path)["site/a/b/x.html"].endswith("two")
