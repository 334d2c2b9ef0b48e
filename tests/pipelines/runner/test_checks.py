"""Results that are not good enough are failures with their reason, and nothing of them is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.operate import set_approved
from tests.support.pipelines import held, put, tree, update, wanted
from tidemill.core.errors import ConfigError
from tidemill.pipelines import Pipeline
from tidemill.store.database import Database

SCHEMA = {"type": "object", "required": ["title"], "properties": {"title": {"type": "string"}}}


def refuses(value: Any) -> None:
    raise ValueError(f"no good: {value}")


@pytest.mark.parametrize(
    ("result", "options", "why"),
    [
        ("", {}, "the result is empty, and must have at least 1 bytes"),
        (b"", {}, "the result is empty"),
        ("abc", {"min_size": 5}, "has 3 bytes, and must have at least 5"),
        ("abc", {"check": refuses}, "ValueError: no good: abc"),
        ("abc", {"check": lambda text: "it has no end"}, "fails <lambda>: it has no end"),
        ("abc", {"check": lambda text: False}, "fails <lambda>"),
        ({"title": 5}, {"schema": SCHEMA}, "does not fit its schema: ['title']: 5 is not of type \"string\""),
        ('{"titel": "x"}', {"schema": SCHEMA}, '"title" is a required property'),
        ("{", {"schema": SCHEMA}, "the result is not JSON"),
        (iter(["abc"]), {"check": refuses}, "need a result as a whole"),
    ],
)
async def test_a_result_that_is_not_good_enough_is_a_failure_with_its_reason(
    result: Any, options: dict[str, Any], why: str, tmp_path: Path, database: Database
) -> None:
    pipeline = Pipeline("p", root=tmp_path)
    pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", name="only", version="1", **options)(
        lambda entity, text: result
    )
    put(tmp_path, {"in/a.txt": "x"})
    plan = await update(database, pipeline)
    assert held(plan) == {"only/a": "BackingOff"}
    assert why in str(plan.holds[0].reason)
    assert "out/a.txt" not in tree(tmp_path)


async def test_good_results_pass_and_empty_ones_where_they_are_allowed(tmp_path: Path, database: Database) -> None:
    pipeline = Pipeline("p", root=tmp_path)

    @pipeline.stage(input="in/{id}.txt", output="a/{id}.json", schema=SCHEMA, check=lambda value: None, version="1")
    def title(entity, text):
        return {"title": text}

    @pipeline.stage(input="in/{id}.txt", output="b/{id}.txt", min_size=0, version="1")
    def nothing(entity, text):
        return ""

    put(tmp_path, {"in/a.txt": "x"})
    assert (await update(database, pipeline)).steps == []
    assert set(tree(tmp_path)) == {"in/a.txt", "a/a.json", "b/a.txt"}


async def has_an_end(text: str) -> bool:
    return False


def test_a_check_that_would_pass_everything_or_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"stage of 'out/\{id\}': check=: has_an_end is async, and nothing would"):
        Pipeline("p").stage(input="in/{id}", output="out/{id}", check=has_an_end)
    with pytest.raises(ConfigError, match=r"check=: .*<lambda> must take \(result\)"):
        Pipeline("p").stage(input="in/{id}", output="out/{id}", check=lambda entity, text: True)  # pyright: ignore


def test_a_schema_that_is_none_is_an_error() -> None:
    from tidemill.pipelines.runner.build import StageCaller

    pipeline = Pipeline("p")
    stage = pipeline.stage(input="in/{id}", output="out/{id}", name="only", schema={"type": "objct"})(lambda e, t: t)
    with pytest.raises(ConfigError, match="is not a JSON Schema"):
        StageCaller(stage)


async def test_changed_inputs_do_not_let_the_others_through_without_approval(
    tmp_path: Path, database: Database
) -> None:
    def made(version: str) -> Pipeline:
        return versioned(tmp_path, version, approve_above=2)

    put(tmp_path, {f"in/{n}.txt": str(n) for n in range(3)})
    await update(database, made("1"))
    assert len(held(await update(database, made("2")))) == 3
    put(tmp_path, {"in/0.txt": "new"})
    for _ in range(2):  # The second plan finds two states, which is not above the limit.
        plan = await update(database, made("2"))
        assert sorted(held(plan)) == ["only/1", "only/2"]
    assert tree(tmp_path)["out/0.txt"] == "new2"
    told = "2 states are left of a rebuild of more than 2: it waits for approval"
    assert str(plan.holds[0].reason).endswith(told)
    await update(database, made("1"))  # One state, built by other code, is below the limit.
    assert tree(tmp_path)["out/0.txt"] == "new1"
    assert len(held(await update(database, made("2")))) == 3
    await set_approved(database, "p", "only", made("2").stages["only"].code.total, by="me", seconds=60)
    assert held(await update(database, made("2"))) == {}
    assert {tree(tmp_path)[f"out/{n}.txt"] for n in range(3)} == {"new2", "12", "22"}


def versioned(root: Path, version: str, approve_above: int) -> Pipeline:
    pipeline = Pipeline("p", root=root, approve_above=approve_above)

    @pipeline.stage(input="in/{id}.txt", output="out/{id}.txt", version=version)
    def only(entity, text):
        return text + version

    return pipeline


async def test_a_pending_approval_never_holds_back_or_hides_a_changed_input(tmp_path: Path, database: Database) -> None:
    def made(version: str) -> Pipeline:
        return versioned(tmp_path, version, approve_above=3)

    put(tmp_path, {f"in/{n}.txt": str(n) for n in range(5)})
    await update(database, made("1"))
    assert set(held(await update(database, made("2"))).values()) == {"NeedsApproval"}
    put(tmp_path, {"in/0.txt": "new"})
    plan = await update(database, made("2"))
    assert tree(tmp_path)["out/0.txt"] == "new2"
    assert sorted(held(plan)) == [f"only/{n}" for n in range(1, 5)]
    assert "its code changed" in str(plan.holds[0].reason)
    rows = await database.fetch("SELECT reason FROM tidemill.state_build WHERE entity = '0' ORDER BY at DESC LIMIT 1")
    assert rows[0]["reason"] == "its inputs are others: changed in/0.txt, and its code changed"
    await set_approved(database, "p", "only", made("2").stages["only"].code.total, by="me", seconds=60)
    assert wanted(await update(database, made("2"))) == {}
