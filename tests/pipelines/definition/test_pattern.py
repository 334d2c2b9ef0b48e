"""Patterns: what matches, what is refused, and that there and back again changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tidemill.core.errors import ConfigError
from tidemill.pipelines import Pattern, PatternError, Pipeline
from tidemill.pipelines.definition.pattern import entity_id, entity_values
from tidemill.pipelines.reducer.facts import entities_of
from tidemill.pipelines.reducer.staleness import input_pairs, input_text

PATTERNS = ["{x}", "a/{x}.txt", "a/{x}/b-{y}.txt", "{x}/{x}-{y}", "a/{x}-{y}_{z}.md", "logs/{x}/"]


@pytest.mark.parametrize(
    ("pattern", "path", "found"),
    [
        ("daily/{date}/{name}.txt", "daily/2026-01-15/a.txt", {"date": "2026-01-15", "name": "a"}),
        ("daily/{date:date}/x", "daily/2026-02-30/x", None),
        ("daily/{date:date}/x", "daily/2026-02-28/x", {"date": "2026-02-28"}),
        ("n/{n:int}.txt", "n/7.txt", {"n": "7"}),
        ("n/{n:int}.txt", "n/007.txt", None),
        ("n/{n:int}.txt", "n/-3.txt", {"n": "-3"}),
        ("n/{n:int}.txt", "n/-0.txt", None),
        ("m/{m:month}", "m/2026-13", None),
        ("{x}/{x}.txt", "a/a.txt", {"x": "a"}),
        ("{x}/{x}.txt", "a/b.txt", None),
        ("a/*.txt", "a/anything.txt", {}),
        ("a/*.txt", "a/.hidden.txt", None),
        ("a/{x}", "a/.hidden", None),
        ("a/{x}", "a/b/c", None),
        ("a/{x}", "b/x", None),
        ("a/{x}.txt", "a/.txt", None),
    ],
)
def test_a_path_matches_or_does_not(pattern: str, path: str, found: dict[str, str] | None) -> None:
    assert Pattern(pattern).match(path) == found


@given(st.sampled_from(PATTERNS), st.lists(st.text(min_size=1, max_size=8), min_size=3, max_size=3))
def test_what_is_put_in_comes_out_or_is_refused(text: str, values: list[str]) -> None:
    pattern = Pattern(text)
    given_values = dict(zip("xyz", values, strict=True))
    try:
        path = pattern.format(given_values)
    except PatternError:
        return
    assert pattern.match(path) == {name: given_values[name] for name in pattern.variables}
    parts = path.split("/")
    assert ".." not in parts
    assert "." not in parts
    assert "" not in parts
    assert len(parts) == len(pattern.segments)


@given(st.sampled_from(PATTERNS), st.text(alphabet="ab./-_x\x00é", max_size=12))
def test_a_path_that_matches_is_formatted_as_it_was(text: str, path: str) -> None:
    pattern = Pattern(text)
    found = pattern.match(path)
    if found is not None and "\x00" not in path:
        assert pattern.format(found) == path


@pytest.mark.parametrize("value", ["..", ".", "../etc/passwd", "a/b", "", "/", ".hidden", "a\x00b"])
def test_no_value_leads_out_of_its_place(value: str) -> None:
    with pytest.raises(PatternError):
        Pattern("out/{x}").format({"x": value})


def test_a_value_that_would_be_read_back_as_another_is_refused() -> None:
    pattern = Pattern("a/{x}-{y}.txt")
    assert pattern.match("a/1-2-3.txt") == {"x": "1", "y": "2-3"}
    with pytest.raises(PatternError, match="parsed back as '1'"):
        pattern.format({"x": "1-2", "y": "3"})


@pytest.mark.parametrize(
    "text", ["", "/a", "a//b", "a/../b", "./../a", "a/{x", "a/x}", "{a}{b}", "{a}*", "a**/b", "**/**", "{x:colour}",
             "{1}", "a\\b", "{x:int}/{x:date}", "{x.day}", "a/{x:**}", "{x:**}y/a", "{x:**}/{y:**}/a", "{x:**}/**/a",
             "{x:**}/a/{x:**}/b"],
)  # fmt: skip
def test_a_pattern_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(PatternError):
        Pattern(text)


#: Any name that a file can have and a pattern matches.
NAMES = st.text(st.characters(exclude_characters="/\x00", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: not name.startswith(".")
)
FOLDERS = st.lists(NAMES, max_size=3).map("/".join)


@given(NAMES, FOLDERS, NAMES, NAMES, FOLDERS, NAMES)
def test_two_entities_never_share_an_id_and_each_comes_back_as_itself(
    a: str, path: str, b: str, c: str, other: str, d: str
) -> None:
    one, two = (a, path, b), (c, other, d)
    assert entity_values(entity_id(one), 3, 1) == one
    assert (entity_id(one) == entity_id(two)) == (one == two)
    assert entity_values(entity_id((a, b)), 2) == (a, b)
    assert entity_id((a,)) == a


@given(FOLDERS, NAMES)
def test_folders_are_one_value_of_a_path(path: str, name: str) -> None:
    pattern = Pattern("src/{path:**}/{name}.md")
    values = {"path": path, "name": name}
    assert pattern.match(pattern.format(values)) == values
    assert pattern.format(values) == f"src/{path}/{name}.md".replace("//", "/")


@given(st.lists(NAMES, min_size=1, max_size=4))
def test_inputs_of_any_name_come_back_from_their_text(names: list[str]) -> None:
    paths = sorted({f"in/{name}" for name in names})
    contents = [f"{at:032x}" for at in range(len(paths))]
    assert input_pairs(input_text(paths, contents)) == dict(zip(paths, contents, strict=True))


@pytest.mark.parametrize(
    ("one", "two", "shared"),
    [
        ("a/{x}.txt", "a/*.txt", True), ("a/{x}.txt", "a/{y}.md", False), ("a/{x}", "b/{x}", False),
        ("a/**/x.txt", "a/{y}.txt", True), ("a/**", "a/b/{y}.md", True), ("a/**/b", "c/{x}/b", False),
        ("**/{x}.txt", "out/deep/{y}.md", False),
        ("{x}/b", "a/{y}", True), ("a/x-{n}", "a/{m}-y", True), ("a/{x}/b", "a/{x}", False), ("a/1", "a/{x}", True),
    ],
)  # fmt: skip
def test_patterns_that_could_mean_one_path_are_known(one: str, two: str, shared: bool) -> None:
    assert Pattern(one).overlaps(Pattern(two)) is shared
    assert Pattern(two).overlaps(Pattern(one)) is shared


def stage(**options):
    pipeline = Pipeline("p")
    return pipeline.stage(name="s", **options)(lambda entity, *inputs: "")


def entities(made, *paths: str) -> dict[str, tuple[tuple[str, ...], ...]]:
    matched = {one.pattern: [path for path in paths if one.pattern.values(path) is not None] for one in made.inputs}
    return dict(entities_of(made, matched))


def test_inputs_are_joined_on_the_variables_that_they_share() -> None:
    made = stage(input=["text/{lang}/{id}.txt", "meta/{id}.json", "style.css"], output="page/{lang}/{id}.html")
    found = entities(made, "text/en/1.txt", "text/de/1.txt", "text/en/2.txt", "meta/1.json", "meta/3.json", "style.css")
    assert found == {
        "en/1": (("text/en/1.txt",), ("meta/1.json",), ("style.css",)),
        "de/1": (("text/de/1.txt",), ("meta/1.json",), ("style.css",)),
    }


def test_all_days_of_a_month_go_into_one_state() -> None:
    made = stage(input="day/{date:date}.txt", output="month/{date.month}.md", collect="date")
    found = entities(made, "day/2026-01-15.txt", "day/2026-02-01.txt", "day/2026-01-16.txt")
    assert found == {
        "2026-01": (("day/2026-01-15.txt", "day/2026-01-16.txt"),),
        "2026-02": (("day/2026-02-01.txt",),),
    }
    assert made.entity("2026-01").path == "month/2026-01.md"


def test_a_star_never_takes_in_what_its_own_stage_makes() -> None:
    made = stage(input="daily/{date}/*.txt", output="daily/{date}/summary.txt")
    found = entities(made, "daily/d/a.txt", "daily/d/summary.txt", "daily/e/summary.txt")
    assert found == {"d": (("daily/d/a.txt",),)}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"input": "a/{x}/{y}", "output": "b/{x}"}, "collect='y'"),
        ({"input": "a/{x}", "output": "b/{x}/{y}"}, "scatter=True"),
        ({"input": ["a/{x}", "b/{y}"], "output": "c/{x}-{y}"}, "shares no variable"),
        ({"input": "a/{x}", "output": "b/*"}, "one file for each entity"),
        ({"input": "a/{x}", "output": "a/{x}"}, "cycle"),
        ({"input": "a/{x}", "output": "b/{x}", "collect": "z"}, "no input has this variable"),
        ({"input": [], "output": "b"}, "no input"),
        ({"input": "a/{x}", "output": "b/{x}", "filter": "x >"}, "not a valid condition"),
        ({"input": "a/{x}", "output": "b/{x}", "max_concurrency": 0}, "would build nothing"),
        ({"input": "a/{x}", "output": "b/{x}", "on_edit": "cry"}, "rebuild, adopt"),
    ],
)
def test_a_stage_that_makes_no_sense_is_refused_and_told_what_to_do(options, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        stage(**options)
    assert told in str(error.value)


def test_stages_in_a_cycle_and_two_makers_of_one_path_are_refused(tmp_path: Path) -> None:
    pipeline = Pipeline("p", root=tmp_path)
    pipeline.stage(input="a/{x}", output="b/{x}", name="one")(lambda entity, text: text)
    with pytest.raises(ConfigError, match=r"cycle: p/one -> p/two"):
        pipeline.stage(input="b/{x}", output="a/{x}", name="two")(lambda entity, text: text)
    with pytest.raises(ConfigError, match="must be written by one stage"):
        pipeline.stage(input="c/{x}", output="b/x-{x}", name="three")(lambda entity, text: text)
    assert list(pipeline.stages) == ["one"]


def test_two_pipelines_that_write_one_pattern_are_refused(tmp_path: Path) -> None:
    from tidemill import App

    app = App("test")
    for name in ("one", "two"):
        pipeline = Pipeline(name, root=tmp_path)
        pipeline.stage(input="a/{x}", output="b/{x}", name="s")(lambda entity, text: text)
        if name == "one":
            app.pipeline(pipeline)
        else:
            with pytest.raises(ConfigError, match="must be written by one stage"):
                app.pipeline(pipeline)


@pytest.mark.parametrize(
    ("text", "path", "found"),
    [
        ("logs/**/{name}.txt", "logs/a.txt", {"name": "a"}),
        ("logs/**/{name}.txt", "logs/2026/01/a.txt", {"name": "a"}),
        ("logs/{host}/**", "logs/h/x/y.txt", {"host": "h"}),
        ("logs/{host}/**", "logs/h", None),
        ("logs/**/{name}.txt", "logs/.hidden/a.txt", None),
        ("**/{day:date}/*.log", "a/b/2026-01-15/x.log", {"day": "2026-01-15"}),
    ],
)
def test_two_stars_stand_for_any_number_of_folders(text: str, path: str, found: dict[str, str] | None) -> None:
    assert Pattern(text).match(path) == found


def test_two_stars_may_only_be_taken_in() -> None:
    made = stage(input="logs/{host}/**", output="digest/{host}.txt")
    found = entities(made, "logs/a/1.txt", "logs/a/x/2.txt", "logs/b/3.txt")
    assert found == {"a": (("logs/a/1.txt", "logs/a/x/2.txt"),), "b": (("logs/b/3.txt",),)}
    with pytest.raises(ConfigError, match="one file for each entity"):
        stage(input="logs/{host}/**", output="digest/**/{host}.txt")
