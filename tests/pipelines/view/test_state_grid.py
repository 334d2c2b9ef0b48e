"""The grid of states: rows in the order that people count in, in pages that neither skip nor repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tidemill.core.errors import ConfigError
from tidemill.ops.operator.cursor import read_row_cursor, write_row_cursor
from tidemill.pipelines import Pipeline
from tidemill.pipelines.reducer.facts import FileFact
from tidemill.pipelines.reducer.staleness import StateRecord
from tidemill.pipelines.runner.running_builds import BuildJob
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.pipelines.view.snapshot import PipelineSnapshot
from tidemill.pipelines.view.state_grid import Rows, all_rows, group, matching, order_of, page_of

MANY = 10_000


def look_at(numbers: range, *, stale: set[int]) -> PipelineSnapshot:
    """A pipeline of two stages over numbered files, of which some have changed since; nothing is read or stored."""
    pipeline = Pipeline("counts", root=Path("nowhere"), approve_above=None)

    @pipeline.stage(input="in/{n:int}.txt", output="mid/{n}.txt")
    def first(entity: Any, text: str) -> str:
        return text

    @pipeline.stage(input="mid/{n:int}.txt", output="out/{n}.txt")
    def second(entity: Any, text: str) -> str:
        return text

    pipeline_view = PipelineView(cast(Any, None), pipeline)
    world = pipeline_view.world
    for stage in pipeline_view.order:
        for one in (stage.inputs[0].pattern, stage.output):
            world.matched[one] = {one.format({"n": str(number)}): None for number in numbers}
            world.files |= {path: FileFact(1, 1, "same", 4) for path in world.matched[one]}
        for number in numbers:
            built_from = "other" if stage.name == "first" and number in stale else "same"
            world.records[stage.name][str(number)] = StateRecord("same", stage.code.total, built_from, 4, 1)
    return PipelineSnapshot(pipeline_view, pipeline_view.plan(), [], at=0.0, took=0.0)


def pages(look: PipelineSnapshot, rows: Rows, *, limit: int, down: bool) -> list[str]:
    """All rows, page by page, by way of cursors."""
    entities, order = matching(look, rows, {}), order_of(group(look, rows.by)[1][0])
    found: list[str] = []
    cursor: str | None = None
    while True:
        page, before = page_of(entities, order, after=read_row_cursor(cursor), limit=limit, down=down)
        assert before == len(found)
        if not page:
            return found
        found += page
        cursor = write_row_cursor(page[-1])


def test_every_row_is_on_one_page_in_the_order_of_numbers() -> None:
    look = look_at(range(MANY), stale=set())
    assert pages(look, Rows("n"), limit=173, down=False) == [str(number) for number in range(MANY)]
    assert pages(look, Rows("n"), limit=200, down=True) == [str(number) for number in reversed(range(MANY))]


def test_a_page_begins_after_the_cursor_also_when_its_row_is_gone_or_others_came() -> None:
    order = order_of(group(look_at(range(1), stale=set()), "n")[1][0])
    after = read_row_cursor(write_row_cursor("15"))
    assert page_of(["9", "10", "20", "100"], order, after=after, limit=2, down=False) == (["20", "100"], 2)
    assert page_of(["9", "10", "11", "20"], order, after=after, limit=2, down=True) == (["11", "10"], 1)


def test_rows_are_found_by_how_their_states_stand_and_by_name() -> None:
    look = look_at(range(MANY), stale={7, 70, 777})
    assert pages(look, Rows("n", ("stale",)), limit=2, down=False) == ["7", "70", "777"]
    assert pages(look, Rows("n", ("blocked",)), limit=50, down=False) == ["7", "70", "777"]
    assert pages(look, Rows("n", ("blocked",), ("first",)), limit=50, down=False) == []
    assert pages(look, Rows("n", ("stale",), text="77"), limit=50, down=True) == ["777"]
    assert len(matching(look, Rows("n", ("fresh",), ("first",)), {})) == MANY - 3
    jobs = {("first", "70"): BuildJob(1, "running", "pipelines", None), ("first", "7"): BuildJob(2, "ready", "p", None)}
    assert matching(look, Rows("n", ("building",)), jobs) == ["70"]
    assert matching(look, Rows("n", ("stale",)), jobs) == ["7", "777"]
    assert look.counts("first", jobs) == {"fresh": MANY - 3, "building": 1, "stale": 2}
    assert all_rows(look, "n")[:3] == ["0", "1", "2"]


def test_what_is_no_cursor_and_no_standing_is_refused() -> None:
    for text in ("!", "aWQ6MTI", "%00", "x" * 5000):
        with pytest.raises(ConfigError, match="not a cursor"):
            read_row_cursor(text)
    with pytest.raises(ConfigError, match="a state is fresh"):
        Rows("n", ("rotten",)).validate()
