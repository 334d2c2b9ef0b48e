"""Expressions of workflow files: JavaScript in `{{ }}`, run by QuickJS without access to anything but its values.

    evaluate("$.rd.content.toUpperCase()", {"rd": {"content": "tides"}})         "TIDES"
    fill("{{$.dates.id}}-digest.md", {"dates": {"id": "2026-01-15"}})            "2026-01-15-digest.md"
    fill("{{$.items.length}}", {"items": [1, 2]})                                2: an expression alone keeps its type

`$` holds the outputs of earlier nodes by name. A `content` that is JSON is text and object: `$.rd.content.link`; in one
of a `.json` file that is not JSON, a field that is read is an error.
Time and memory of an evaluation are limited, because the text may come from an untrusted source. What cannot be
evaluated, or has no value (`undefined`), is an `ExpressionError`; it never stays in a text silently.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import _quickjs as quickjs  # The package around it starts a thread when it is imported.

from tidemill.core.errors import ConfigError
from tidemill.pipelines.workflows.expressions.native_limits import LIMITS

LONGEST = 10_000
SECONDS = 1.0  # of processor time
MOST_MEMORY = 128 << 20
MOST_PARTS = 1_000_000  # values in a result
MOST_FILLED = 50_000_000  # characters of a text with its values
KEPT = 500  # compiled expressions per thread
MOST_ENDS = 50  # places at which a {{ may end

_ENDING = "; \t\r\n"

_ROOT = re.compile(
    r"(?<![\w$])(?<![\w$)\]]\.)\$(?:\s*(?:\?\.|\.)\s*([^\W\d][\w$]*)|\s*(?:\?\.)?\[\s*(['\"])(.*?)\2\s*\]|)"
)
_STRING = re.compile(r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"")
_REQUIRED = re.compile(r"(?<![\w$])(?<![\w$)\]]\.)\$\s*\.\s*([^\W\d][\w$]*)(?![\w$])(?!\s*\?[.?])")
_SECRET = re.compile(
    r"(?<!\w)(?:(?<!\.)|(?<=\.\.\.))\$(env|credentials)\b(?:\.([A-Za-z_][\w-]*)|\[\s*['\"]([^'\"]+)['\"]\s*\])?"
)

#: Names that expressions may use beside `$`.
NAMES = ("$env", "$credentials", "$params", "output_path", "codeHash", "currentCodeHash")

#: Methods of texts that write old HTML: a field of this name that JSON lacks is missing, and no function.
_LEGACY = [
    "anchor",
    "big",
    "blink",
    "bold",
    "fixed",
    "fontcolor",
    "fontsize",
    "italics",
    "link",
    "small",
    "strike",
    "sub",
    "sup",
]

#: Freezes what JavaScript brings along, so that no expression changes it for another; then makes `compile` and `run`.
_PRELUDE = (
    """
(() => {
  "use strict";
  const parse = JSON.parse, write = JSON.stringify, Code = Function;
  const own = Object.prototype.hasOwnProperty, words = String.prototype;
  for (const name of LEGACY) delete words[name];
  const asText = ['toJSON', 'toString', 'valueOf', Symbol.toPrimitive];
  const broken = (text, path, error) => new Proxy({}, {
    get(_, key) {
      if (asText.includes(key)) return () => text;
      const found = key === 'length' || typeof key === 'symbol' || /^\\d+$/.test(key) ? text[key] : words[key];
      if (found === undefined) throw new TypeError(`${path} is not JSON, so that it has no ${String(key)}: ${error}`);
      return typeof found === 'function' ? found.bind(text) : found;
    },
  });
  const both = (text, path) => {
    let data;
    try { data = parse(text); } catch (error) { return path ? broken(text, path, error.message) : text; }
    if (data === null || typeof data !== 'object') return text;
    return new Proxy(data, {
      get(target, key) {
        if (asText.includes(key)) return () => text;
        if (own.call(target, key) || (Array.isArray(target) && key in target)) return target[key];
        const found = key === 'length' ? text.length : words[key];
        return typeof found === 'function' ? found.bind(text) : found ?? target[key];
      },
    });
  };
  const enter = (value) => {
    for (const node of Object.values(value)) {
      const text = node === null || typeof node !== 'object' ? undefined : node.content;
      if (typeof text === 'string' && /^\\s*[{[]/.test(text)) {
        const path = typeof node.path === 'string' && node.path.endsWith('.json') ? node.path : '';
        let made;
        Object.defineProperty(node, 'content', { enumerable: true, get: () => (made ??= both(text, path)) });
      }
    }
    return value;
  };
  const small = (value) => {  // Writing JSON cannot be interrupted, and a list may contain another many times.
    const open = [value];
    for (let count = 0; open.length; count++) {
      if (count > MOST) throw new RangeError('the value has more than ' + MOST + ' parts');
      const part = open.pop();
      if (part === null || typeof part !== 'object') continue;
      if (Array.isArray(part)) for (const each of part) open.push(each);
      else for (const key of Object.keys(part)) open.push(part[key]);
    }
    return value;
  };
  JSON.stringify = (value, by, space) => write(small(value), Array.isArray(by) ? long(by) : by, space);
  const compile = (text) => Code('$', NAMES, '"use strict"; return (\\n' + text.replace(/[;\\s]+$/, '') + '\\n);');
  const run = (code, context, names) => {
    const value = code(enter(parse(context)), ...parse(names));
    if (value === undefined) return 0;
    if (typeof value === 'number' && !Number.isFinite(value)) return 1;
    if (typeof value === 'function' || typeof value === 'symbol') return 2;
    return value instanceof Promise ? 3 : write(small(value));
  };
LIMITS
  for (const [owner, name] of [
    [Date, 'toLocaleDateString'], [Date, 'toLocaleTimeString'], [Date, 'toLocaleString'], [Number, 'toLocaleString'],
  ]) {
    const plain = owner.prototype[name];
    owner.prototype[name] = function (...given) {  // The engine would ignore a language.
      if (given.length) throw new TypeError(name + ' knows no languages here: leave out its arguments');
      return plain.call(this);
    };
  }
  const seen = new Set();
  const freeze = (value) => {
    if (value === null || (typeof value !== 'object' && typeof value !== 'function') || seen.has(value)) return;
    seen.add(value);
    for (const key of Reflect.ownKeys(value)) {
      const held = Object.getOwnPropertyDescriptor(value, key);
      freeze(held.value); freeze(held.get); freeze(held.set);
    }
    freeze(Object.getPrototypeOf(value));
    Object.freeze(value);
  };
  for (const each of [globalThis, compile, (async () => 0), (function* () {}), (async function* () {})]) freeze(each);
  return (wanted) => (wanted === 'run' ? run : compile);
})()
""".replace("LIMITS", LIMITS)
    .replace("LEGACY", json.dumps(_LEGACY))
    .replace("NAMES", ", ".join(f"'{name}'" for name in NAMES))
    .replace("MOST", str(MOST_PARTS))
)

_here = threading.local()
_names: ContextVar[Mapping[str, Any]] = ContextVar("tidemill_expression_names", default=MappingProxyType({}))


class ExpressionError(ConfigError):
    """An expression that cannot be parsed or evaluated."""


class Hole(NamedTuple):
    """A `{{ }}` in a text, and the expression in it."""

    start: int
    end: int
    expression: str


class _Engine:
    """JavaScript for one thread, with the expressions that it has compiled."""

    def __init__(self) -> None:
        context = quickjs.Context()
        context.set_memory_limit(MOST_MEMORY)
        made = context.eval(_PRELUDE)
        context.set_time_limit(SECONDS)
        self.run = made("run")
        self.compile = lru_cache(maxsize=KEPT)(made("compile"))
        self._context = context


def _engine() -> _Engine:
    if not hasattr(_here, "engine"):
        _here.engine = _Engine()
    return _here.engine


@contextmanager
def naming(**names: Any) -> Iterator[None]:
    """Give expressions within the block further names, such as `output_path`."""
    token = _names.set({**_names.get(), **names})
    try:
        yield
    finally:
        _names.reset(token)


def current_names() -> Mapping[str, Any]:
    """The names that `naming` gives expressions here."""
    return _names.get()


def evaluate(text: str, context: Mapping[str, Any], **names: Any) -> Any:
    """The value of an expression; `$` is the context. An expression without a value is an error."""
    answer = _run(text, context, names)
    if not isinstance(answer, str):
        raise ExpressionError(f"{_short(text)}: {_VALUELESS[int(answer)]}")
    try:
        return json.loads(answer if r"\ud" not in answer else _well_formed(answer))
    except (ValueError, RecursionError) as error:
        raise ExpressionError(f"{_short(text)}: the result is not JSON: {error}") from error


def is_true(text: str, context: Mapping[str, Any], **names: Any) -> bool:
    """Whether a condition holds, as JavaScript decides it: undefined, null, 0, NaN and "" do not."""
    return bool(evaluate(f"!!(\n{text.rstrip(_ENDING)}\n)", context, **names))


#: Why an expression has no value, by the number that JavaScript returns then.
_VALUELESS = (
    "it has no value: a field that it reads is missing; write `?? 'default'` where it may be",
    "the result is not a number",
    "the result is a function: call it",
    "the result is a promise: write what is known without waiting",
)


def _run(text: str, context: Mapping[str, Any], names: Mapping[str, Any]) -> str | int:
    """The value as JSON, or the number of the reason why there is none."""
    if not text.strip() or len(text) > LONGEST:
        raise ExpressionError(f"an expression is a text of 1 to {LONGEST} characters")
    given = {**_names.get(), **names}
    given |= {f"${kind}": _looked_up(text, kind, given) for kind in ("env", "credentials") if f"${kind}" in text}
    try:
        scope = json.dumps(_needed(text, context))
        named = json.dumps([given.get(name) for name in NAMES])
    except (TypeError, ValueError, RecursionError) as error:
        raise ExpressionError(f"{_short(text)}: a value that it reads is not JSON: {error}") from error
    try:
        engine = _engine()
        return engine.run(engine.compile(text), scope, named)
    except (quickjs.JSException, UnicodeError, MemoryError) as error:
        if "$credentials" in text and str(error).startswith(
            "SyntaxError"
        ):  # Such as JSON.parse: it quotes what it read.
            raise ExpressionError(f"{_short(text)}: a credential that it reads has another form") from None
        raise ExpressionError(f"{_short(text)}: {_reason(error)}") from None


def _reason(error: BaseException) -> str:
    """What JavaScript says about a failure; an engine that ran out of memory is not used again."""
    message = str(error).partition("\n")[0].removeprefix("InternalError: ").removeprefix("SyntaxError: ")
    if "interrupted" in message:
        return f"it takes longer than {SECONDS:g} s"
    # The engine throws null where even an error would need more memory.
    if "out of memory" in message or message in ("null", "[uninitialized]") or isinstance(error, MemoryError):
        del _here.engine
        return f"the result would be too large: it needs more than {MOST_MEMORY >> 20} MB"
    return message


def _well_formed(text: str) -> str:
    """JSON text whose unpaired surrogates are replaced: nothing can store them."""
    return re.sub(r"(?<!\\)((?:\\\\)*)\\ud[89a-f][0-9a-f]{2}(?![0-9a-f])", r"\1\\ufffd", text)


def _needed(text: str, context: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a context that an expression reads: a large state that it does not read costs nothing."""
    found: set[str] = set()
    for root in _ROOT.finditer(text):
        name = root[1] or root[3]
        if name is None:
            return context
        found.add(name)
    return {name: context[name] for name in found if name in context}


def _looked_up(text: str, kind: str, names: Mapping[str, Any]) -> dict[str, Any]:
    """What an expression reads of `$env` or `$credentials`; an error says how a name becomes available."""
    known: Mapping[str, Any] = names.get(f"${kind}") or {}
    found: dict[str, Any] = {}
    for name in names_in(text, kind):
        if name is None:
            raise ExpressionError(f"{_short(text)}: name what you read: ${kind}.NAME")
        if name not in known and kind == "env":
            raise ExpressionError(
                f"{_short(text)}: the environment variable {name} is not available: "
                "set it, and name it in App(allow_env=[...]) or TIDEMILL_ALLOW_ENV"
            )
        if name not in known:
            raise ExpressionError(
                f"{_short(text)}: there is no credential {name!r} here: `tidemill credentials set {name}` stores one"
            )
        found[name] = known[name]
    return found


def names_in(text: str, kind: str) -> list[str | None]:
    """The names that a text reads from `$env` or `$credentials`; None for one that is not written out."""
    return [each[2] or each[3] for each in _SECRET.finditer(text) if each[1] == kind]


@lru_cache(maxsize=2000)
def find_holes(text: str) -> tuple[Hole, ...]:
    """The `{{ }}` of a text. One ends at the first `}}` before which an expression is complete: `{{ {a: {b: 1}} }}`."""
    found: list[Hole] = []
    at = text.find("{{")
    while at >= 0:
        ends = _ends(text, at + 2)
        if not ends:
            break
        complete = (end for end in ends if _is_expression(text[at + 2 : end]))
        end = next(complete, ends[0])
        found.append(Hole(at, end + 2, text[at + 2 : end]))
        at = text.find("{{", end + 2)
    return tuple(found)


def _ends(text: str, start: int) -> list[int]:
    found: list[int] = []
    at = text.find("}}", start, start + LONGEST)
    while at >= 0 and len(found) < MOST_ENDS:
        found.append(at)
        at = text.find("}}", at + 1, start + LONGEST)
    return found


def _is_expression(text: str) -> bool:
    try:
        check_expression(text)
    except ExpressionError:
        return False
    return True


def replace_holes(text: str, put: Callable[[Hole], str]) -> str:
    """A text with each of its `{{ }}` replaced."""
    parts: list[str] = []
    at = 0
    for hole in find_holes(text):
        parts += [text[at : hole.start], put(hole)]
        at = hole.end
    return "".join([*parts, text[at:]])


def alone_in(text: str) -> str | None:
    """The expression of a text that is one `{{ }}` and nothing else."""
    stripped = text.strip()
    holes = find_holes(stripped)
    return holes[0].expression if holes and holes[0][:2] == (0, len(stripped)) else None


def fill(value: Any, context: Mapping[str, Any], **names: Any) -> Any:
    """A text with its `{{ }}` filled in, also inside lists and objects. An expression alone keeps its type."""
    if isinstance(value, str):
        alone = alone_in(value)
        if alone is not None:
            return evaluate(alone, context, **names)
        return _filled(value, context, names)
    if isinstance(value, list):
        return [fill(each, context, **names) for each in value]
    if isinstance(value, Mapping):
        return {_filled(key, context, names): fill(each, context, **names) for key, each in value.items()}
    return value


def _filled(text: str, context: Mapping[str, Any], names: Mapping[str, Any]) -> str:
    size = len(text)

    def put(hole: Hole) -> str:
        nonlocal size
        value = shown(evaluate(hole.expression, context, **names))
        size += len(value)
        if size > MOST_FILLED:
            raise ExpressionError(f"the text would be too large: the limit is {MOST_FILLED:,} characters")
        return value

    return replace_holes(text, put)


def shown(value: Any) -> str:
    """A value as it stands in a text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        raise ExpressionError("a value is too large to be written as text") from error


def bare(text: str) -> str:
    """An expression without surrounding braces; an error where only parts of it have them."""
    alone = alone_in(text)
    if alone is None and find_holes(text):
        raise ExpressionError(f"{_short(text)}: write all of it without {{{{ }}}}, or all of it in one pair of them")
    return text if alone is None else alone


def check_expression(text: str) -> None:
    """Raise an `ExpressionError` if a text is not an expression."""
    if not text.strip() or len(text) > LONGEST:
        raise ExpressionError(f"an expression is a text of 1 to {LONGEST} characters")
    try:
        _engine().compile(text)
    except (quickjs.JSException, UnicodeError, MemoryError) as error:
        raise ExpressionError(f"{_short(text)}: {_reason(error)}") from None


def expressions_in(value: Any) -> Iterator[str]:
    """The expressions in the `{{ }}` of a text, and of all texts in lists and objects."""
    if isinstance(value, str):
        yield from (hole.expression for hole in find_holes(value))
    elif isinstance(value, list):
        for each in value:
            yield from expressions_in(each)
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from expressions_in(str(name))
            yield from expressions_in(each)


def is_open(value: Any) -> bool:
    """Whether a `{{` of a text, also inside lists and objects, has no `}}`."""
    if isinstance(value, str):
        return "{{" in replace_holes(value, lambda _: "")
    if isinstance(value, Mapping):
        return any(is_open(name) or is_open(each) for name, each in value.items())
    return isinstance(value, list) and any(is_open(each) for each in value)


def roots_of(text: str) -> set[str]:
    """The names that an expression reads from the context: `a` and `b` of `$.a.x + $.b`."""
    return {root[1] or root[3] for root in _ROOT.finditer(text) if root[1] or root[3]}


def required_roots(text: str) -> set[str]:
    """The names without which an expression fails: not `a` of `$.a?.x ?? 1`."""
    return set(_REQUIRED.findall(_STRING.sub("''", text)))


def _short(text: str) -> str:
    stripped = text.strip()
    return repr(stripped if len(stripped) <= 200 else f"{stripped[:200]}...")
