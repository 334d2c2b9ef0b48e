"""Which code a process says it has, when its code changes what stages read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidemill import App
from tidemill.pipelines import Pipeline
from tidemill.pipelines.definition.code_hash import hash_code
from tidemill.roles import jobs_role

SEEN: dict[str, str] = {}


def remembered(entity: Any, text: str) -> str:
    return SEEN.setdefault(text, text.upper())


def pipeline_in(root: Path) -> Pipeline:
    made = Pipeline("texts", root=root)
    made.stage(input="in/{id}.txt", output="out/{id}.txt")(remembered)
    return made


async def test_a_worker_whose_code_has_filled_a_cache_has_the_same_code_as_other_processes(
    database_url: str, tmp_path: Path
) -> None:
    SEEN.clear()
    fresh = hash_code(remembered).total
    app = App("texts", database_url=database_url)
    pipeline = app.pipeline(pipeline_in(tmp_path))
    jobs_role(app.declarations)
    SEEN["a"] = "filled by a job before the first build"
    assert hash_code(remembered).total != fresh
    assert pipeline.stages["remembered"].code.total == fresh
