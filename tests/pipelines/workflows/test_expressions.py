"""Expressions of workflow files."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from tidemill.pipelines.workflows.expressions.javascript import ExpressionError, evaluate, fill, is_true

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
        ("JSON.stringify({a: [1, $.rd.n]})", '{"a":[1,3]}'),
        ("Math.max(1, $.rd.n, 2)", 3),
        ("$.rd.n === 3 && $.rd.content !== ''", True),
        ("(1.005).toFixed(1)", "1.0"),
    ],
)
def test_an_expression_has_a_value(text: str, value: object) -> None:
    assert evaluate(text, CONTEXT) == value


def test_a_text_is_filled_in_and_an_expression_alone_keeps_its_type() -> None:
    assert fill("{{$.rd.n}} of {{ $.items.length }}", CONTEXT) == "3 of 2"
    assert fill("{{ $.items }}", CONTEXT) == CONTEXT["items"]
    assert fill({"a": ["{{$.rd.n}}", 1]}, CONTEXT) == {"a": [3, 1]}


#: What people write into workflow files every day.
EVERYDAY = [
    ("`${$.rd.content}: ${$.rd.n + 1}`", "Hello, tides: 4"),
    ("[...$.items, {id: 3}].length", 3),
    ("({...$.items[0], ok: 'yes'})", {"id": 1, "ok": "yes"}),
    ("$.items.sort((a, b) => b.id - a.id)[0].id", 2),
    ("$.items.toSorted((a, b) => b.id - a.id).map(({id}) => id)", [2, 1]),
    ("$.items.flatMap(i => [i.id, i.id])", [1, 1, 2, 2]),
    ("typeof $.rd.n", "number"),
    ("typeof $.rd.unknown", "undefined"),
    ("$.rd.n ** 2", 9),
    ("$.rd.n % 2 === 1", True),
    ("$.missing?.x ?? 'd'", "d"),
    ("$.rd.missing?.x ?? 'd'", "d"),
    ("$.rd.missing || 'd'", "d"),
    ("$.rd.content.match(/t(i)des/)[1]", "i"),
    ("$.rd.content.replace(/[aeiou]/gi, '*')", "H*ll*, t*d*s"),
    ("/^Hello/.test($.rd.content)", True),
    ("[...$.rd.content.matchAll(/l/g)].length", 2),
    ("new Date('2026-01-15T10:00:00Z').toISOString()", "2026-01-15T10:00:00.000Z"),
    ("new Date(0).getUTCFullYear()", 1970),
    ("new Date('2026-01-15').toISOString().slice(0, 10)", "2026-01-15"),
    ("Date.now() > 1e12", True),
    ("new Date() instanceof Date", True),
    ("Object.entries({a: 1, b: 2}).map(([k, v]) => `${k}=${v}`).join('&')", "a=1&b=2"),
    ("Object.fromEntries([['a', 1]])", {"a": 1}),
    ("Object.keys($.rd).includes('n')", True),
    ("Object.values({a: 1, b: 2}).reduce((a, b) => a + b)", 3),
    ("Array.from({length: 3}, (_, i) => i)", [0, 1, 2]),
    ("[...new Set([1, 1, 2])]", [1, 2]),
    ("$.items.find(i => i.id === 2).ok", False),
    ("$.items.findIndex(i => i.id === 2)", 1),
    ("$.items.some(i => i.ok) && !$.items.every(i => i.ok)", True),
    ("$.items.at(-1).id", 2),
    ("$.items.map((item, index) => index)", [0, 1]),
    ("$.items.filter(Boolean).length", 2),
    ("parseInt('42px', 10)", 42),
    ("Number('3.5') + Number(true)", 4.5),
    ("parseFloat('3.14abc').toFixed(1)", "3.1"),
    ("Math.round(2.5) + Math.sqrt(9) + Math.trunc(1.9)", 7),
    ("isNaN('x')", True),
    ("encodeURIComponent('a b&c')", "a%20b%26c"),
    ("decodeURIComponent('a%20b')", "a b"),
    ("JSON.parse('[1, 2]')[1]", 2),
    ("JSON.stringify({a: 1}, null, 2)", '{\n  "a": 1\n}'),
    ("'a,b;c'.split(/[,;]/)", ["a", "b", "c"]),
    ("'x'.padStart(3, 'ab')", "abx"),
    ("'Tide'.charAt(0).toLowerCase() + 'Tide'.substring(1)", "tide"),
    ("'tide table'.split(' ').map(w => w[0].toUpperCase() + w.slice(1)).join(' ')", "Tide Table"),
    ("(() => { let sum = 0; for (const i of $.items) sum += i.id; return sum; })()", 3),
    ("$.rd.n > 5 ? 'big' : $.rd.n > 2 ? 'middle' : 'small'", "middle"),
    ("[3, 1, 2].sort().reverse().concat([0])", [3, 2, 1, 0]),
    ("'no' in {no: 1}", True),
    ("1_000 + 0x10", 1016),
]


@pytest.mark.parametrize(("text", "value"), EVERYDAY)
def test_everyday_javascript_works(text: str, value: object) -> None:
    assert evaluate(text, CONTEXT) == value


def test_json_content_is_text_and_object() -> None:
    context = {"feed": {"content": '{"link": "https://a", "tags": ["x", "y"]}'}, "list": {"content": '[{"id": 7}]'}}
    assert evaluate("$.feed.content.link", context) == "https://a"
    assert evaluate("$.feed.content.tags[1].toUpperCase()", context) == "Y"
    assert evaluate("$.feed.content.startsWith('{')", context) is True
    assert evaluate("$.feed.content", context) == context["feed"]["content"]
    assert evaluate("$.feed.content + ''", context) == context["feed"]["content"]
    assert fill("<{{$.feed.content}}>", context) == f"<{context['feed']['content']}>"
    assert evaluate("JSON.parse($.feed.content).link", context) == "https://a"
    assert evaluate("$.feed.content.missing ?? 'none'", context) == "none"
    assert evaluate("Object.keys($.feed.content)", context) == ["link", "tags"]
    assert evaluate("$.list.content[0].id", context) == 7
    assert evaluate("$.list.content.map(each => each.id)", context) == [7]
    assert evaluate("[...$.list.content].length", context) == 1
    assert evaluate("Array.isArray($.list.content)", context) is True


def test_a_field_of_a_json_file_that_is_cut_off_is_an_error_and_its_text_is_still_text() -> None:
    context = {"src": {"content": '{"title": "Ti', "path": "in/2.json"}, "txt": {"content": "{ab", "path": "in/2.txt"}}
    for text in ("$.src.content.title + ' of 2'", "$.src.content.title ?? 'none'", "$.src.content?.title"):
        with pytest.raises(ExpressionError, match=r"in/2\.json is not JSON, so that it has no title: "):
            evaluate(text, context)
    assert evaluate("$.src.content", context) == context["src"]["content"]
    assert evaluate("$.src.content.length + $.src.content[2] + $.src.content.slice(0, 2)", context) == '13t{"'
    assert evaluate("`<${$.src.content}>`", context) == f"<{context['src']['content']}>"
    assert evaluate("$.txt.content.title ?? 'none'", context) == "none"


def test_a_field_that_json_lacks_is_missing_also_where_old_javascript_has_a_function_of_its_name() -> None:
    context = {"item": {"content": '{"title": "Ebb"}', "path": "in/1.json"}}
    for name in ("link", "anchor", "sub", "big", "small", "bold"):
        assert evaluate(f"$.item.content.{name} ?? 'none'", context) == "none"
        with pytest.raises(ExpressionError, match="it has no value"):
            evaluate(f"$.item.content.{name}", context)


def test_an_expression_may_end_as_a_statement_does() -> None:
    assert evaluate("$.rd.n; ", CONTEXT) == fill("{{ $.rd.n; }}", CONTEXT) == 3
    assert fill("n = {{$.rd.n;}};", CONTEXT) == "n = 3;"
    assert is_true("$.rd.n > 2;", CONTEXT)


def test_braces_inside_an_expression_belong_to_it() -> None:
    assert fill("{{ {a: {b: $.rd.n}} }}", CONTEXT) == {"a": {"b": 3}}
    assert fill("{{ '}}' + $.rd.n }} and {{JSON.stringify({a: {}})}}", CONTEXT) == '}}3 and {"a":{}}'
    assert fill("{{`${$.rd.n}}`}}!", CONTEXT) == "3}!"


def test_an_expression_changes_nothing_for_the_next() -> None:
    for text in ("Array.prototype.map = () => 7", "globalThis.evil = 1", "Object.prototype.n = 1", "JSON.parse = 1"):
        with pytest.raises(ExpressionError):
            evaluate(text, CONTEXT)
    assert evaluate("$.items.push(1) && $.items.length", CONTEXT) == 3
    assert evaluate("$.items.length", CONTEXT) == 2


def test_an_expression_that_does_not_end_is_ended() -> None:
    for text in ("(() => { while (true) {} })()", "/(a+)+$/.test('a'.repeat(60) + 'b')"):
        with pytest.raises(ExpressionError, match="takes longer than"):
            evaluate(text, CONTEXT)
    assert evaluate("1 + 1", CONTEXT) == 2


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
    ["'ab'.repeat(1e5).repeat(1e5)", "'a'.padStart(2000000000)", "'a'.padEnd(1e9, 'x')",
     "(1).toFixed(101)", "(1).toFixed(-1)",
     "'a'.repeat(1e6).replaceAll('a', 'b'.repeat(1000))",
     "'a'.repeat(1e6).split('').join('b'.repeat(1000))",
     "'a'.repeat(60).split('').reduce((a, b) => a + a, 'x')",
     "'a'.repeat(60).split('').reduce((a, b) => a.concat(a), 'x')",
     "'a'.repeat(60).split('').reduce((a, b) => a.concat(a), [1])",
     "'a'.repeat(60).split('').reduce((a, b) => [a, a].flat(), [1])",
     "'a'.repeat(60).split('').reduce((a, b) => [a, a], [1])",
     "JSON.stringify('a'.repeat(60).split('').reduce((a, b) => [a, a], [1]))",
     "'a'.repeat(60).split('').reduce((a, b) => a * a, 3)",
     "Array(1e5).fill(0).map((_, i) => 'a'.repeat(1e6) + i)"],
)  # fmt: skip
def test_an_expression_cannot_take_all_memory(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, CONTEXT)


def test_many_expressions_in_one_text_cannot_either_and_large_files_are_no_trouble() -> None:
    with pytest.raises(ExpressionError, match="too large"):
        fill("{{'a'.repeat(10000000)}}" * 10, CONTEXT)
    large = "tide\n" * 500_000
    assert fill("{{$.text}}!", {"text": large}) == f"{large}!"
    assert evaluate("$.text.replaceAll('tide', 'ebb').length", {"text": large}) == 2_000_000


@pytest.mark.parametrize("text", ["new Date(0).toLocaleDateString('en-GB')", "(1234.5).toLocaleString('de-DE')"])
def test_a_language_that_the_engine_would_ignore_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError, match="knows no languages here"):
        evaluate(text, CONTEXT)
    assert evaluate("new Date(0).toLocaleDateString()", CONTEXT)


def test_an_expression_without_memory_for_its_own_error_says_that_it_needs_too_much() -> None:
    with pytest.raises(ExpressionError, match="needs more than 128 MB"):
        evaluate("'a,'.repeat(3e6).split(',').length", CONTEXT)
    assert evaluate("1 + 1", CONTEXT) == 2


@pytest.mark.parametrize(
    "text",
    [
        *(f"new Array(4294967295).{call}" for call in ("reverse()", "concat([1])", "slice(1)", "sort()", "shift()",
          "flat()", "copyWithin(1, 0)", "splice(0, 1)", "unshift(1)", "flatMap(x => x)", "toLocaleString()",
          "values().drop(4294967290).next().done")),
        "String(new Array(4294967295))",
        "(() => { const list = []; list[4294967290] = 1; return list.join() })()",
        "[[new Array(4294967295)]].flat(5)",
        "[].concat(new Array(4294967295))",
        "Array.prototype.reverse.call({length: 2 ** 53 - 1})",
        "String.raw({raw: {length: 2 ** 53}})",
        "JSON.stringify({}, new Array(4294967295))",
        *(f"'a'.repeat(1e7).{name}('a'.repeat(5e6) + 'b', '')" for name in ("indexOf", "split", "replaceAll")),
    ],
)  # fmt: skip
def test_no_function_of_the_engine_runs_on_without_end(text: str) -> None:
    with pytest.raises(ExpressionError, match=r"a list has more than|too l(ong|arge)|takes longer|array length"):
        evaluate(text, {})


def test_limited_functions_do_what_they_do_in_javascript() -> None:
    assert evaluate("[[3, [1]], 2].flat().concat([5], 6).slice(1).reverse()", {}) == [6, 5, 2, [1]]
    assert evaluate("[1, 2].flatMap(x => [x, [x]]).join('-') + [1, 2].toLocaleString()", {}) == "1-1-2-21,2"
    assert evaluate(
        "(() => { const a = [3, 1]; a.unshift(9); a.sort(); return [a.shift(), ...a.splice(0, 1)] })()", {}
    ) == [1, 3]
    assert (
        evaluate(r"String.raw`a\n${1}` + Array.prototype.slice.call('abc', 1) + 'a.b.a'.replace('.', '$&')", {})
        == "a\\n1b,ca.b.a"
    )
    assert evaluate("['a-b'.split('-', 1), 'aba'.lastIndexOf('a'), 'aba'.indexOf('a', 1), 'x'.includes('')]", {}) == [
        ["a"],
        2,
        2,
        True,
    ]
    assert evaluate("[1, 2, 3].values().drop(1).toArray()", {}) == [2, 3]
    assert evaluate("JSON.stringify({a: 1, b: [2]}, ['b'], 1)", {}) == '{\n "b": [\n  2\n ]\n}'
