"""Refs, templates and conditions: what they read, and what they say when they cannot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from tidemill.core.expressions.conditions import Condition
from tidemill.core.expressions.paths import ABSENT, RefError, format_path, look_up, parse_path
from tidemill.core.expressions.refs import Refs, RefSource, ref, same
from tidemill.core.expressions.template import Template

CONTEXT: dict[str, Any] = {
    "extract": {"rows": 3, "files": [{"n": "a", "size": 1}, {"n": "b", "size": 0}], "odd.name": "x"},
    "run": {"day": "monday"},
    "left_out": ABSENT,
    "nothing": None,
}


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("extract.rows", ("extract", "rows")),
        ("$.run.day", ("run", "day")),
        ("extract.files[1].n", ("extract", "files", 1, "n")),
        ("extract.files[-1]", ("extract", "files", -1)),
        ("extract", ("extract",)),
        (["extract", "odd.name"], ("extract", "odd.name")),
        (["extract", "files", 0], ("extract", "files", 0)),
    ],
)
def test_a_path_is_written_as_text_or_as_a_list(written: Any, path: Any) -> None:
    assert parse_path(written) == path
    assert parse_path(list(path)) == path


@pytest.mark.parametrize(
    "written", ["", "$.", ".", "a..b", "[0]", "a.", "a[x]", "a b.c ", "a{", 5, [], [0], ["a", 1.5]]
)
def test_what_is_not_a_path_is_refused(written: Any) -> None:
    if written == "a b.c ":
        assert parse_path(written) == ("a b", "c")
        return
    with pytest.raises(RefError, match="is not a path"):
        parse_path(written)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("extract.rows", 3),
        ("extract.files[1].n", "b"),
        ("extract.files.0.n", "a"),
        ("extract.files[-1].n", "b"),
        ("left_out.anything.at.all", None),
        ("nothing", None),
    ],
)
def test_a_path_leads_to_a_value(path: str, value: Any) -> None:
    assert look_up(parse_path(path), CONTEXT) == value


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("extract.rowz", "args.x: extract.rowz: extract has no field 'rowz'; its fields: files, odd.name, rows"),
        (
            "extract.files[9]",
            "args.x: extract.files[9]: extract.files is a list of length 2, and index 9 is out of range",
        ),
        (
            "extract.files.first",
            "args.x: extract.files.first: extract.files is a list, and 'first' is not an index",
        ),
        ("extract.rows.x", "args.x: extract.rows.x: extract.rows is a number, which has no fields"),
        ("run.day.x", "args.x: run.day.x: run.day is text, which has no fields"),
        ("nothing.x", "args.x: nothing.x: nothing is null, which has no fields"),
        ("nobody.x", "args.x: nobody.x: there is no source named 'nobody'"),
    ],
)
def test_a_path_that_leads_nowhere_says_how_far_it_led(path: str, told: str) -> None:
    with pytest.raises(RefError) as error:
        look_up(parse_path(path), CONTEXT, ("args", "x"))
    assert str(error.value) == told


def test_refs_are_read_wherever_they_stand_in_the_data() -> None:
    expression = {
        "rows": {"$from": "extract.rows"},
        "deep": [{"day": ref("$.run.day")}, 1, None, "plain"],
        "literally": {"$value": {"$from": "not read"}},
        "same": {"$eq": [{"$from": "extract.rows"}, 3]},
        "other": {"$ne": [{"$from": "run.day"}, "sunday"]},
        "text": {"$template": "on {{$.run.day}}"},
    }
    assert Refs().resolve(expression, CONTEXT) == {
        "rows": 3,
        "deep": [{"day": "monday"}, 1, None, "plain"],
        "literally": {"$from": "not read"},
        "same": True,
        "other": True,
        "text": "on monday",
    }


def test_a_filter_keeps_the_items_for_which_its_condition_holds() -> None:
    where = {"$ne": [{"$from": "item.size"}, 0]}
    filtered = {"$filter": {"in": {"$from": "extract.files"}, "where": where}}
    assert Refs().resolve(filtered, CONTEXT) == [{"n": "a", "size": 1}]
    assert list(Refs().sources(filtered)) == [RefSource(("extract", "files"), ("$filter", "in", "$from"))]
    assert Refs().resolve({"$filter": {"in": {"$from": "left_out.x"}, "where": True}}, CONTEXT) == []


def test_a_default_stands_in_for_what_is_not_there() -> None:
    refs = Refs()
    assert refs.resolve(ref("extract.rowz", default=7), CONTEXT) == 7
    assert refs.resolve(ref("left_out.rows", default=7), CONTEXT) == 7
    assert refs.resolve(ref("extract.rows", default=7), CONTEXT) == 3
    assert refs.resolve(ref("nobody", default=None), CONTEXT) is None


def test_a_host_adds_operators_of_its_own() -> None:
    refs = Refs({"$upper": str.upper})
    expression = {"name": {"$upper": {"$from": "run.day"}}}
    assert refs.resolve(expression, CONTEXT) == {"name": "MONDAY"}
    assert [source.path for source in refs.sources(expression)] == [("run", "day")]
    with pytest.raises(RefError, match=r"args: \$upper failed: TypeError"):
        refs.resolve({"$upper": 5}, CONTEXT, ("args",))
    with pytest.raises(RefError, match=r"'\$from' is not a valid operator name"):
        Refs({"$from": str.upper})


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ({"$form": "a"}, 'args: $form is not an operator; did you mean $from? (for a literal: {"$value": ...})'),
        ({"$from": "a", "x": 1}, "args: $from and 'x' are in one object; $from must be the only key"),
        ({"$eq": [1]}, "args.$eq: $eq compares two values: write [one, other]"),
        ({"$ne": "x"}, "args.$ne: $ne compares two values: write [one, other]"),
        ({"$filter": []}, 'args.$filter: $filter needs a list and a condition: write {"in": ..., "where": ...}'),
        ({"$template": 5}, "args.$template: 5 is not a string"),
        ({"$template": "{{run}}"}, "args.$template: '{{run}}' does not begin with '$.'; write {{$.node.field}}"),
        (
            {"a": [{"$from": "x..y"}]},
            "args.a[0].$from: 'x..y' is not a path; write something like 'node.field' or '$.node.list[0]'",
        ),
    ],
)
def test_a_ref_that_is_wrongly_written_is_told_with_its_place(expression: Any, told: str) -> None:
    for use in (
        lambda: list(Refs().sources(expression, ("args",))),
        lambda: Refs().resolve(expression, CONTEXT, ("args",)),
    ):
        with pytest.raises(RefError) as error:
            use()
        assert str(error.value) == told


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ({"$filter": {"in": 5, "where": True}}, "$filter.in: $filter needs a list, and this is not one"),
        ({"$filter": {"in": [1], "where": 5}}, "$filter.where: the condition must be true or false, but is 5"),
    ],
)
def test_a_filter_of_no_list_or_without_a_condition_is_refused(expression: Any, told: str) -> None:
    with pytest.raises(RefError) as error:
        Refs().resolve(expression, CONTEXT)
    assert str(error.value) == told


def test_ref_takes_a_path_and_a_default_only() -> None:
    with pytest.raises(RefError, match="ref\\(\\) takes a path and default=, not els"):
        ref("a.b", els=3)
    with pytest.raises(RefError, match="is not a path"):
        ref("")


def test_equality_is_that_of_json() -> None:
    assert same(1, 1.0)
    assert not same(1, True)
    assert not same(0, False)
    assert same({"a": [1, {"b": None}]}, {"a": [1.0, {"b": None}]})
    assert not same([1], [1, 2])


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda part: st.lists(part) | st.dictionaries(st.text("ab$."), part),
)


@given(plain)
def test_a_value_is_always_itself_behind_value(value: Any) -> None:
    assert Refs().resolve({"$value": value}, {}) == value
    assert list(Refs().sources({"$value": value})) == []


@given(
    st.lists(st.text("abc_-", min_size=1) | st.integers(-9, 9), min_size=1).filter(
        lambda parts: isinstance(parts[0], str)
    )
)
def test_a_path_is_read_back_from_its_text(parts: list[str | int]) -> None:
    assert parse_path(format_path(tuple(parts))) == tuple(parts)


# -- templates ------------------------------------------------------------------------------------


def test_a_template_is_filled_in_with_text_and_json() -> None:
    template = Template("{{$.extract.rows}} on {{ $.run.day }}: {{$.extract.files[0]}}{{$.nothing}} {{{{x}}")
    assert template.render(CONTEXT) == '3 on monday: {"n":"a","size":1} {{x}}'
    assert template.sources == (("extract", "rows"), ("run", "day"), ("extract", "files", 0), ("nothing",))
    assert Template("{{$.left_out.x}}!").render(CONTEXT) == "!"
    assert Template("no holes {at} all").render({}) == "no holes {at} all"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a {{$.x", "prompt: '{{$.x' is not closed; write {{$.node.field}}, or {{{{ for two braces"),
        ("{{x}}", "prompt: '{{x}}' does not begin with '$.'; write {{$.node.field}}"),
        ("{{$.}}", "prompt: '$.' is not a path; write something like 'node.field' or '$.node.list[0]'"),
    ],
)
def test_a_template_that_is_wrongly_written_is_refused(text: str, told: str) -> None:
    with pytest.raises(RefError) as error:
        Template(text, ("prompt",))
    assert str(error.value) == told


def test_a_template_that_leads_nowhere_says_so() -> None:
    with pytest.raises(RefError, match=r"prompt: extract\.rowz: extract has no field 'rowz'"):
        Template("{{$.extract.rowz}}", ("prompt",)).render(CONTEXT)


# -- conditions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("extract.rows > 2", True),
        ("extract.rows == 3.0 && run.day != 'sunday'", True),
        ("extract.files.exists(f, f.n == 'b')", True),
        ("size(extract.files) > 5", False),
        ("has(extract.rowz)", False),
        ("left_out == null", True),
    ],
)
def test_a_condition_in_cel_holds_or_does_not(text: str, holds: bool) -> None:
    assert Condition(text, CONTEXT).holds(CONTEXT) is holds


def test_a_condition_knows_what_it_reads_and_texts_are_not_names() -> None:
    condition = Condition("extract.rows > 2 && run.day != 'extract nothing' // left_out", CONTEXT)
    assert condition.names == {"extract", "run"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "extract.rows >",
            r"skip_if: 'extract.rows >' is not a valid condition: at character 15: Syntax error: .*<EOF>'$",
        ),
        (
            "nobody > 1",
            r"skip_if: 'nobody > 1' is not a valid condition: at character 1: undeclared reference to 'nobody'$",
        ),
        ("  ", r"skip_if: a condition must be a CEL expression of 1 to 4000 characters$"),
        ("1 == 1 || " * 500 + "true", r"skip_if: a condition must be a CEL expression of 1 to 4000 characters$"),
    ],
)
def test_a_condition_that_is_wrongly_written_is_refused(text: str, told: str) -> None:
    with pytest.raises(RefError, match=told):
        Condition(text, CONTEXT, ("skip_if",))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("extract.rowz > 1", "'extract.rowz > 1' cannot be evaluated: Key not found in map : \"rowz\""),
        ("extract.rows / 0 > 1", "'extract.rows / 0 > 1' cannot be evaluated: divide by zero"),
        ("extract.rows", "'extract.rows' must be true or false, but is 3"),
    ],
)
def test_a_condition_that_cannot_be_decided_says_why(text: str, told: str) -> None:
    with pytest.raises(RefError) as error:
        Condition(text, CONTEXT).holds(CONTEXT)
    assert str(error.value) == told


def test_a_condition_cannot_go_on_for_ever() -> None:
    ten = "[0,1,2,3,4,5,6,7,8,9]"
    text = "true"
    for name in "abcdefg":
        text = f"{ten}.all({name}, {text})"
    with pytest.raises(RefError, match="cannot be evaluated"):
        Condition(text).holds({})
