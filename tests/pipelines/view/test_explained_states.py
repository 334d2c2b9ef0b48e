"""What `tidemill explain` says of states is true, and names the command that lets a state be built."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support import eventually
from tests.support.operate import pause_pipeline
from tests.support.pipelines import put, update
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.jobs.workers import ControlWorkers, control_workers
from tidemill.ops.operator.local import Local
from tidemill.pipelines import SKIP, Pipeline, load_workflow
from tidemill.pipelines.runner.build_job import enqueue_builds
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.stores.base import StateStoreError
from tidemill.pipelines.view.pipeline_view import read_and_plan
from tidemill.store.database import Database
from tidemill.store.states.states import TAKE_LEAD


class Told:
    """A pipeline that is declared, built and explained."""

    def __init__(self, app: App, root: Path, database: Database) -> None:
        self.app, self.root, self.database = app, root, database
        self.at = Local(database, Caller("me", "admin"), app.declarations)

    async def build(self, pipeline: Pipeline, files: dict[str, str]) -> None:
        put(self.root, files)
        if pipeline.name not in self.app.declarations.pipelines.known:
            self.app.pipeline(pipeline)
        await update(self.database, pipeline)

    async def why(self, id: str) -> str:
        return " ".join((await self.at.do(explain, ExplainObject(id=id))).why)


@pytest.fixture
def told(app: App, tmp_path: Path, database: Database) -> Told:
    return Told(app, tmp_path, database)


async def test_a_file_that_does_not_fit_its_pattern_is_not_said_to_be_missing(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(input="days/{d:date}.txt", output="kept/{d}.txt", version="1")
    def kept(entity, text):
        return text

    await told.build(pipeline, {"days/2026-01-01.txt": "one", "days/monday.txt": "two"})
    why = await told.why("kept/monday.txt")
    assert "It would take days/monday.txt, which does not fit its input 'days/{d:date}.txt': d='monday' is not" in why
    assert "does not exist" not in why


async def test_a_path_that_is_none_of_the_many_outputs_of_a_state_is_said_not_to_be(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(input="book/{id}.txt", output="page/{id}/{n:int}.txt", scatter=True, version="1")
    def pages(entity, text):
        return dict(enumerate(text.split(), 1))

    await told.build(pipeline, {"book/x.txt": "one two"})
    assert "There is no page/x/9.txt: stage pages makes page/x/1.txt, page/x/2.txt of x." in await told.why(
        "page/x/9.txt"
    )
    for id in ("page/x/2.txt", "p/page/x/2.txt", "pages/x"):
        assert "There is no" not in await told.why(id)


async def test_what_a_collected_input_waits_for_is_followed_to_its_source(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(
        input={"order": "orders/{lang}/{id}.txt", "meta": "meta/{id}.json"},
        output="joined/{lang}/{id}.txt",
        version="1",
    )
    def joined(entity, order, meta):
        return order + meta

    @pipeline.stage(input="joined/{lang}/{id}.txt", output="sums/{lang}.txt", collect="id", version="1")
    def sums(entity, files):
        return "sum"

    await told.build(pipeline, {"orders/de/7.txt": "seven", "orders/en/1.txt": "one", "meta/1.json": "{}"})
    why = await told.why("sums/de.txt")
    assert "joined/de/7 is blocked, because it waits for meta/7.json" in why
    why = await told.why("sums/fr.txt")
    assert "Its input order orders/fr/*.txt does not exist, and no stage of this pipeline makes it." in why
    why = await told.why("joined/de/7.txt")
    assert "`tidemill pipeline write APP meta/7.json` writes it" in why


async def test_what_a_month_of_days_waits_for_is_followed_to_its_days(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(
        input="day/{d:date}.txt", output="long/{d}.txt", filter="d >= '2026-02-01'", version="1", in_process=True
    )
    def long(entity, text):
        return SKIP if text == "-" else text

    @pipeline.stage(input="long/{d:date}.txt", output="month/{d.month}.txt", collect="d", version="1", in_process=True)
    def month(entity, files):
        return "month"

    days = {"2026-01-01": "one", "2026-01-02": "two", "2026-02-01": "three", "2026-03-01": "-"}
    await told.build(pipeline, {f"day/{day}.txt": text for day, text in days.items()})
    why = await told.why("month/2026-01.txt")
    assert "Its input long/*.txt does not exist for d.month=2026-01: the filter of stage long leaves out all" in why
    why = await told.why("month/2026-03.txt")
    assert "does not exist for d.month=2026-03: stage long makes nothing of 2026-03-01" in why
    why = await told.why("month/2026-04.txt")
    assert "Its input day/*.txt does not exist for d.month=2026-04, and no stage of this pipeline makes it." in why


async def test_an_input_that_another_pipeline_makes_is_not_to_be_written_by_hand(told: Told) -> None:
    first, second = Pipeline("first", root=told.root), Pipeline("second", root=told.root)

    @first.stage(input="in/{id}.txt", output="mid/{id}.txt", version="1")
    def copy(entity, text):
        return text

    @second.stage(input="mid/{id}.txt", output="out/{id}.txt", version="1")
    def last(entity, text):
        return text

    await told.build(first, {"in/a.txt": "a"})
    await told.build(second, {})
    why = await told.why("out/z.txt")
    assert "Its input mid/z.txt does not exist: stage first/copy makes it; `tidemill explain mid/z.txt`" in why


async def test_a_filter_that_cannot_be_evaluated_and_a_state_of_nothing_say_so(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(input="in/{id}.txt", output="odd/{id}.txt", filter="int(id) > 3", version="1")
    def odd(entity, text):
        return text

    @pipeline.stage(input="in/{id}.txt", output="some/{id}.txt", version="1")
    def some(entity, text):
        entity.note("too short to be of use")
        return SKIP

    @pipeline.stage(input="some/{id}.txt", output="after/{id}.txt", version="1")
    def after(entity, text):
        return text

    await told.build(pipeline, {"in/a.txt": "a"})
    assert "the filter of stage odd cannot be evaluated for it" in await told.why("odd/a.txt")
    assert "its stage makes nothing of it (too short to be of use)." in await told.why("some/a.txt")
    assert "stage some makes nothing of a; `tidemill explain p/some/a` says why" in await told.why("after/a.txt")


@pytest.mark.parametrize(("paused", "word"), [("", "p"), ("slow", "p/slow")])
async def test_a_paused_state_names_the_command_that_resumes_it(told: Told, paused: str, word: str) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(input="in/{id}.txt", output="slow/{id}.txt", version="1")
    def slow(entity, text):
        return text

    await told.build(pipeline, {"in/a.txt": "a"})
    await pause_pipeline(told.database, "p", paused, paused=True, by="me")
    put(told.root, {"in/b.txt": "b"})
    assert f"`tidemill pipeline resume APP {word}` lets it be built" in await told.why("slow/b.txt")


async def test_failures_and_approvals_name_their_commands_also_for_what_waits_for_them(told: Told) -> None:
    def declared(version: str) -> Pipeline:
        pipeline = Pipeline("p", root=told.root, approve_above=0)

        @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", version=version)
        def mid(entity, text):
            if text == "bad":
                raise ValueError("a bad line")
            return text

        @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", version="1")
        def out(entity, text):
            return text

        return pipeline

    await told.build(declared("1"), {"in/good one.txt": "good", "in/bad one.txt": "bad"})
    retry = "`tidemill pipeline retry APP 'p/mid/bad one'` tries it at once"
    assert retry in await told.why("mid/bad one.txt")
    assert retry in await told.why("out/bad one.txt")
    told.app.declarations.pipelines.known["p"] = declared("2")
    await update(told.database, declared("2"))
    assert "`tidemill pipeline approve APP p/mid` lets them be built" in await told.why("mid/good one.txt")


async def test_a_build_that_waits_says_all_that_holds_its_job(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def out(entity, text):
        return text

    told.app.pipeline(pipeline)
    put(told.root, {"in/a.txt": "a"})
    _, plan = await read_and_plan(told.database, pipeline)
    await enqueue_builds(told.database, told.app.pipelines.task_of(pipeline.stages["out"]), plan.builds, "root")
    assert "No worker serves queue pipelines" in await told.why("out/a.txt")
    await told.database.fetch(
        "INSERT INTO tidemill.worker (host, pid, queues, tasks, max_concurrency, versions, lease_until)"
        " VALUES ('h', 1, '{pipelines}', '{p/out}', 1, '{}', now() + interval '1 hour')"
    )
    await told.at.do(control_workers, ControlWorkers(mode="pause", queue="pipelines"))
    assert "An operator has paused queue pipelines" in await told.why("out/a.txt")


async def test_pipelines_disabled_workflow_files_stages_and_inputs_can_be_named(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def out(entity, text):
        return text

    await told.build(pipeline, {"in/a.txt": "a"})
    await pause_pipeline(told.database, "p", "", paused=True, by="me")
    for id in ("p", "workflow/p"):
        found = await told.at.do(explain, ExplainObject(id=id))
        assert (found.kind, found.state) == ("pipeline", "paused")
        assert "Its states: 1 fresh." in found.why[0]
        assert "Resume it with `tidemill pipeline resume APP p`." in found.why
    for id in ("out", "p/out"):
        with pytest.raises(NotFoundError, match="is a stage: write the path of one of its outputs, or out/ENTITY"):
            await told.why(id)
    with pytest.raises(NotFoundError, match=r"'in/a.txt' is an input, of stage out, and is not a state"):
        await told.why("in/a.txt")
    other = Pipeline("other", root=told.root)
    other.stage(input="else/{id}.txt", output="made/{id}.txt", name="made", version="1")(lambda entity, text: text)
    await told.build(other, {})
    with pytest.raises(NotFoundError, match=r"'in/a.txt' is an input, of stage out, and is not a state of pipeline p"):
        await told.why("in/a.txt")


async def test_a_condition_that_lets_nothing_through_is_named(told: Told) -> None:
    nodes = [
        ("t", "state_trigger", "draft", {"pattern": "drafts/{id}.txt"}),
        ("r", "state_read", "rd", {"pattern": "drafts/{id}.txt", "entity_id": "{{$.draft.entity_id}}"}),
        ("i", "if", "big", {"condition": "$.rd.content.length > 3"}),
        ("w", "state_write", "wr", {"pattern": "posts/{id}.txt", "entity_id": "{{$.draft.entity_id}}", "content": "x"}),
    ]
    graph = {
        "name": "graph", "mode": "pipeline", "stateRoot": str(told.root),
        "nodes": [{"id": id, "typeId": kind, "name": name, "data": data} for id, kind, name, data in nodes],
        "connections": [{"sourceNodeId": a, "targetNodeId": b} for a, b in ("tr", "ri", "iw")],
    }  # fmt: skip
    stages = {
        "name": "list", "mode": "pipeline", "stateRoot": str(told.root),
        "stages": [
            {"id": "src", "type": "source", "pattern": "drafts/{id}.txt"},
            {"id": "long", "type": "transform", "pattern": "long/{id}.txt", "input": "src",
             "node": {"typeId": "if", "data": {"condition": "$.src.content.length > 3"}}},
        ],
    }  # fmt: skip
    for file in (graph, stages):
        put(told.root, {f"{file['name']}.json": json.dumps(file)})
        await told.build(load_workflow(told.root / f"{file['name']}.json").pipelines[0], {"drafts/a.txt": "hi"})
    assert "makes nothing of it (nothing has passed big ($.rd.content.length > 3))" in await told.why("posts/a.txt")
    assert "nothing has passed long ($.src.content.length > 3)" in await told.why("long/a.txt")


async def test_an_empty_folder_is_not_the_root_whose_states_are_known(told: Told) -> None:
    pipeline = Pipeline("p", root=told.root / "mounted")

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def out(entity, text):
        if text == "bad":
            raise ValueError("a bad line")
        return text

    told.root /= "mounted"
    await told.build(pipeline, {"in/a.txt": "a", "in/b.txt": "bad"})
    told.root.rename(told.root.parent / "elsewhere")
    told.root.mkdir()
    with pytest.raises(StateStoreError, match="is empty, and pipeline p keeps its states there: mount it"):
        await update(told.database, pipeline)
    told.root.rmdir()
    (told.root.parent / "elsewhere").rename(told.root)
    assert "it failed once" in (await told.why("out/b.txt")).lower(), "nothing was forgotten"


async def test_a_state_that_is_next_says_that_others_of_its_stage_are_being_built(told: Told) -> None:
    pipeline, may_end = Pipeline("p", root=told.root), asyncio.Event()

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1", max_concurrency=1, in_process=True)
    async def slow(entity, text):
        await may_end.wait()
        return text

    put(told.root, {"in/a.txt": "a", "in/b.txt": "b"})
    told.app.pipeline(pipeline)
    driver = Driver(told.database, pipeline)
    lead = await told.database.connect_to_listen()
    await lead.fetchval(TAKE_LEAD, f"{told.database.schema}:p")
    building = asyncio.create_task(run_once(driver))
    await eventually(lambda: driver.running_here == 1)
    assert "It is being built now: by" in await told.why("out/a.txt")
    assert "It is missing. It is built after others of its stage, of which 1 is being built now." in await told.why(
        "out/b.txt"
    )
    may_end.set()
    await building
    lead.terminate()


async def test_commands_that_name_a_pipeline_with_a_space_can_be_pasted(told: Told) -> None:
    pipeline = Pipeline("my news", root=told.root)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version="1")
    def only(entity, text):
        return text

    await told.build(pipeline, {"in/a.txt": "a"})
    assert "`tidemill pipeline plan APP 'my news'` lists what is not fresh" in await told.why("my news")
    with pytest.raises(NotFoundError, match="`tidemill pipeline plan APP 'my news'` lists what is not fresh"):
        await told.why("only")
    await pause_pipeline(told.database, "my news", "", paused=True, by="me")
    assert "Resume it with `tidemill pipeline resume APP 'my news'`." in await told.why("my news")
