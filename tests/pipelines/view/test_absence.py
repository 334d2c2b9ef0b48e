"""Explanations of states that do not exist: the partner of a join, a closed gate, a filter, a stage before them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.operate import pause_pipeline
from tests.support.pipelines import put, update
from tidemill import App
from tidemill.core.accounts import Caller
from tidemill.core.errors import NotFoundError
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Nothing
from tidemill.ops.pipelines.lineage import PreviewChange, get_lineage, preview_change
from tidemill.ops.pipelines.pipelines import PipelineRef, get_pipeline
from tidemill.ops.pipelines.plan import PlanPipeline, plan_pipeline
from tidemill.ops.pipelines.states import GetState, get_state
from tidemill.pipelines import Pipeline
from tidemill.pipelines.view.lineage import consumers
from tidemill.pipelines.view.pipeline_view import read_and_plan
from tidemill.store.database import Database


@pytest.fixture
async def at(app: App, tmp_path: Path, database: Database) -> Local:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input={"text": "in/{id}.txt", "gate": "ok/{id}.ok"}, output="mid/{id}.txt", version="1")
    def joined(entity, text, gate):
        return text

    @pipeline.stage(input="mid/{id}.txt", output="out/{id}.txt", version="1")
    def last(entity, text):
        return text

    @pipeline.stage(input="in/{id}.txt", output="big/{id}.txt", filter="id != 'a'", version="1")
    def filtered(entity, text):
        return text

    put(tmp_path, {"in/a.txt": "apple", "in/b.txt": "pear", "ok/b.ok": "yes", "ok/c.ok": "yes"})
    app.pipeline(pipeline)
    await update(database, pipeline)
    return Local(database, Caller("me", "admin"), app.declarations)


async def told(at: Local, id: str) -> tuple[str, str]:
    found = await at.do(explain, ExplainObject(id=id))
    return found.state, " ".join(found.why)


async def test_the_missing_partner_of_a_join_and_a_closed_gate_are_named(at: Local) -> None:
    state, why = await told(at, "mid/a.txt")
    assert state == "blocked"
    assert "waits for ok/a.ok" in why
    assert "waits for in/c.txt" in (await told(at, "mid/c.txt"))[1]
    line = await at.do(get_pipeline, PipelineRef(name="p"))
    assert {stage.name: stage.counts for stage in line.stages}["joined"] == {"fresh": 1, "blocked": 2}


async def test_what_follows_from_a_state_that_waits_says_what_for(at: Local) -> None:
    state, why = await told(at, "out/a.txt")
    assert state == "absent"
    assert "Its input mid/a.txt does not exist: joined/a is blocked, because it waits for ok/a.ok" in why


async def test_a_filter_and_an_input_that_never_was_are_named(at: Local) -> None:
    assert (
        "Its inputs exist, and the filter of stage filtered leaves it out: id != 'a'"
        in (await told(at, "big/a.txt"))[1]
    )
    state, why = await told(at, "big/z.txt")
    assert state == "absent"
    assert "in/z.txt does not exist, and no stage of this pipeline makes it" in why
    assert "stage joined makes it, and has not" in (await told(at, "out/z.txt"))[1]
    with pytest.raises(NotFoundError, match="makes no"):
        await at.do(get_state, GetState(name="p", stage="last", entity="a/b"))


async def test_a_paused_stage_says_what_it_would_do(at: Local, tmp_path: Path, database: Database) -> None:
    await pause_pipeline(database, "p", "filtered", paused=True, by="me")
    put(tmp_path, {"in/b.txt": "plum"})
    state, why = await told(at, "big/b.txt")
    assert state == "paused"
    assert "paused by me; otherwise it would be built: its inputs are others: changed in/b.txt" in why


async def test_a_state_behind_a_filter_or_a_failure_says_what_holds_it_up(
    app: App, tmp_path: Path, database: Database
) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="mid/{id}.txt", filter="id != 'a'", version="1")
    def first(entity, text):
        raise ValueError("a bad line")

    @pipeline.stage(input="mid/{id}.txt", output="late/{id}.txt", version="1")
    def second(entity, text):
        return text

    @pipeline.stage(input="late/{id}.txt", output="out/{id}.txt", version="1")
    def third(entity, text):
        return text

    put(tmp_path, {"in/a.txt": "apple", "in/b.txt": "pear"})
    app.pipeline(pipeline)
    await update(database, pipeline)
    at = Local(database, Caller("me", "admin"), app.declarations)
    assert "the filter of stage first leaves it out: id != 'a'" in (await told(at, "late/a.txt"))[1]
    state, why = await told(at, "out/b.txt")
    assert state == "blocked"
    assert "It waits for late/b.txt. first/b is failed: it failed once and is retried at " in why
    assert "ValueError: a bad line" in why


async def test_all_pipelines_are_one_graph_and_a_change_is_counted_before_it_is_made(
    app: App, tmp_path: Path, database: Database
) -> None:
    first, second = Pipeline("first", root=tmp_path), Pipeline("second", root=tmp_path)

    @first.stage(input="in/{id}.txt", output="mid/{id}.txt", version="1")
    def copy(entity, text):
        return text

    @second.stage(input="mid/{id}.txt", output="all.txt", collect="id", version="1")
    def gather(entity, files):
        return "".join(file.text() for file in files)

    put(tmp_path, {"in/a.txt": "a", "in/b.txt": "b"})
    for pipeline in (first, second):
        app.pipeline(pipeline)
        await update(database, pipeline)
    at = Local(database, Caller("me", "admin"), app.declarations)
    graph = await at.do(get_lineage, Nothing())
    assert [node.id for node in graph.nodes] == ["in/{id}.txt", "first/copy", "second/gather"]
    assert graph.arrows == [("in/{id}.txt", "first/copy"), ("first/copy", "second/gather")]
    assert [node.counts for node in graph.nodes] == [{}, {"fresh": 2}, {"fresh": 1}]

    async def counted(what: str) -> dict[str, int]:
        found = await at.do(preview_change, PreviewChange(what=what))
        assert found.states == sum(part.states for part in found.parts)
        assert found.seconds >= 0
        return {part.stage: part.states for part in found.parts}

    assert await counted("in/a.txt") == {"copy": 1, "gather": 1}
    assert await counted("in/new.txt") == {"copy": 1, "gather": 1}
    assert await counted("first/copy") == {"copy": 2, "gather": 1}
    assert await counted("second/gather") == {"gather": 1}
    with pytest.raises(NotFoundError, match="the stages are first/copy, second/gather"):
        await counted("nothing/at/all")


async def test_what_a_filter_leaves_out_is_not_counted_as_built(at: Local, tmp_path: Path, database: Database) -> None:
    for path, stages in (("in/a.txt", {"joined", "last"}), ("in/b.txt", {"joined", "last", "filtered"})):
        put(tmp_path, {"ok/a.ok": "yes"})
        found = await at.do(preview_change, PreviewChange(what=path))
        assert {part.stage for part in found.parts} == stages
    assert at.declared is not None
    pipeline = at.declared.pipelines.known["p"]
    view, _ = await read_and_plan(database, pipeline)
    assert ("filtered", "a") not in {
        (stage.name, id) for stage, id in consumers(view, [(pipeline.stages["joined"], "a")])
    }


async def test_a_plan_lists_what_waits_for_a_partner_and_holds_nothing_for_it(at: Local) -> None:
    found = await at.do(plan_pipeline, PlanPipeline(name="p"))
    assert (found.builds, found.holds) == (0, 0)
    assert [(part.stage, part.reason, part.states) for part in found.parts] == [("joined", "no_partner", 2)]
    assert [(step.entity, step.state, step.explanation) for step in found.steps] == [
        ("a", "blocked", "it waits for ok/a.ok, which its other inputs are joined with"),
        ("c", "blocked", "it waits for in/c.txt, which its other inputs are joined with"),
    ]
    assert (await at.do(plan_pipeline, PlanPipeline(name="p", stage="last"))).parts == []
