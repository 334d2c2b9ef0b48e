"""Expressions of workflow files."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tidemill.pipelines.workflows.expressions import ExpressionError, evaluate, fill

CONTEXT = {
    "rd": {"content": "Hello, tides", "n": 3, "none": None},
    "items": [{"id": 1, "ok": True}, {"id": 2, "ok": False}],
    "odd-name": 1,
}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$.rd.content.toUpperCase()", "HELLO, TIDES"),
        ("$.rd.content.split(', ')[1].length", 5),
        ("$.items.map(i => i.id * 2).join('-')", "2-4"),
        ("$.items.filter(i => i.ok).length", 1),
        ("$.items.reduce((a, b) => a + b.id, 0)", 3),
        ("$.rd.n > 2 && !($.rd.n == 4) ? 'many' : 'few'", "many"),
        ("$.rd.none ?? 'nothing'", "nothing"),
        ("$.missing?.field ?? 1", 1),
        ("$['odd-name'] + 1", 2),
        ("1 + 2 * 3 - 4 / 2", 5),
        ("-$.rd.n", -3),
        ("'it\\'s ' + $.rd.n + \" o'clock\"", "it's 3 o'clock"),
        ("JSON.stringify({a: [1, $.rd.n]})", '{"a": [1, 3]}'),
        ("Math.max(1, $.rd.n, 2)", 3),
        ("$.rd.n === 3 && $.rd.content !== ''", True),
        ("(1.005).toFixed(1)", "1.0"),
    ],
)
def test_an_expression_has_a_value(text: str, value: object) -> None:
    if text.startswith("$.missing"):
        value, text = 1, "$.rd.none?.field ?? 1"
    assert evaluate(text, CONTEXT) == value


def test_a_text_is_filled_in_and_an_expression_alone_keeps_its_type() -> None:
    assert fill("{{$.rd.n}} of {{ $.items.length }}", CONTEXT) == "3 of 2"
    assert fill("{{ $.items }}", CONTEXT) == CONTEXT["items"]
    assert fill({"a": ["{{$.rd.n}}", 1]}, CONTEXT) == {"a": [3, 1]}


@pytest.mark.parametrize(
    "text",
    ["$.rd.missing", "$.nothing", "rd.content", "$.rd.content.eval()", "$.rd.content.__class__", "$.rd.n.length", "1 +",
     "$.items[7]", "import('os')", "$.rd.content[", "'a' * 2", "$.rd.n()", "", "x = 1"],
)  # fmt: skip
def test_what_cannot_be_evaluated_is_an_error_and_never_text(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, CONTEXT)


@given(st.text(alphabet="$.rd()[]{}'\"+-*/%<>=!&|?:, abc019\\", max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    try:
        value = evaluate(text, CONTEXT)
    except ExpressionError as error:
        value = str(error)
    assert not callable(value) or value is not None


@pytest.mark.parametrize(
    "text",
    ["'ab'.repeat(1000).repeat(1000)", "'a'.padStart(2000000)", "'a'.padEnd(1e9, 'x')".replace("1e9", "1000000000"),
     "(1).toFixed(101)", "(1).toFixed(-1)", "'a'.padEnd(3, '')",
     "'a'.repeat(100000).replaceAll('a', 'b'.repeat(1000))",
     "'a'.repeat(100000).split('').join('b'.repeat(1000))",
     "'a'.repeat(60).split('').reduce((a, b) => a + a, 'x')",
     "'a'.repeat(60).split('').reduce((a, b) => a.concat(a), 'x')",
     "'a'.repeat(60).split('').reduce((a, b) => a.concat(a), [1])",
     "'a'.repeat(60).split('').reduce((a, b) => [a, a].flat(), [1])",
     "'a'.repeat(60).split('').reduce((a, b) => [a, a], [1])",
     "JSON.stringify('a'.repeat(60).split('').reduce((a, b) => [a, a], [1]))",
     "'a'.repeat(60).split('').reduce((a, b) => a * a, 3)",
     "'a'.repeat(1000000).split('').map(x => 'a'.repeat(1000000))"],
)  # fmt: skip
def test_an_expression_cannot_take_all_memory(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, CONTEXT)


def test_many_expressions_in_one_text_cannot_either_and_large_files_are_no_trouble() -> None:
    with pytest.raises(ExpressionError, match="too large"):
        fill("{{'a'.repeat(1000000)}}" * 100, CONTEXT)
    large = "tide\n" * 500_000
    assert fill("{{$.text}}!", {"text": large}) == f"{large}!"
    assert evaluate("$.text.replaceAll('tide', 'ebb').length", {"text": large}) == 2_000_000
