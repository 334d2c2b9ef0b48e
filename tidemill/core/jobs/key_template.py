"""Keys with arguments filled in: `fair_key="{tenant}"`. The SQL function `fill_in` follows the same rule.

A word in braces is an argument; all other braces stay as they are. Text is filled in as it is, numbers as JSON writes
them, and the rest as True, False and None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.core.jobs.job import check_key

_ARGUMENT = re.compile(r"\{(\w+)\}")


def check_template(what: str, template: str | None, known: Iterable[str], of: str) -> str | None:
    """The template of a key, if all words in braces are known arguments; else a `ConfigError`."""
    if template is None:
        return None
    known = list(known)
    for name in _ARGUMENT.findall(check_key(what, template)):
        if name not in known:
            raise ConfigError(f"{of}: {what} {template!r} does not fit: {_missing(name, known)}")
    return template


def fill_in(what: str, template: str | None, arguments: Callable[[], Mapping[str, Any]], of: str) -> str | None:
    """A key with the arguments filled in; a `PayloadError` if it names one that there is not."""
    if template is None or not isinstance(template, str) or "{" not in template:
        return template
    names = set(_ARGUMENT.findall(template))
    if not names:
        return template
    given = arguments()
    texts = {name: _text(what, template, name, given, of) for name in names}
    return check_key(what, _ARGUMENT.sub(lambda found: texts[found[1]], template))


def _text(what: str, template: str, name: str, given: Mapping[str, Any], of: str) -> str:
    if name not in given:
        raise PayloadError(f"{of}: {what} {template!r} does not fit: {_missing(name, given)}")
    value = given[name]
    if value is None or isinstance(value, str | bool | int | float):
        return str(value)
    kind = "object" if isinstance(value, Mapping) else "list"
    raise PayloadError(f"{of}: {what} {template!r} does not fit: {name!r} is a JSON {kind}; use text or a number")


def _missing(name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    hint = did_you_mean(name, known) or f"; there {'is' if len(known) == 1 else 'are'} {', '.join(known) or 'none'}"
    return f"there is no argument {name!r}{hint}"
