"""What was wrong with a command line, in one sentence that says what was probably meant."""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError
from cyclopts.exceptions import (
    CoercionError,
    MissingArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from tidemill.cli.main import build, one_line

#: Names of the parameter that takes an application by its place.
_APPLICATION = {"app", "apps", "target"}

_NUMBERS: dict[type, str] = {int: "a whole number", float: "a number"}


def usage_message(error: CycloptsError) -> str:
    command = " ".join(["tidemill", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        app = inspect.signature(error.target).parameters.get("app") if error.target else None
        file = next((word for word in sys.argv[1:] if word.endswith(".py")), None)
        is_option = app is not None and app.kind is app.KEYWORD_ONLY
        hint = f"; the application is an option of this command: --app {file}" if file and is_option else ""
        return f"{error.unused_tokens[0]!r} is an argument too many{hint}; see `{command} --help`"
    if isinstance(error, UnknownOptionError) and "--app" in (error.token.keyword, error.token.value) and error.target:
        placed = _APPLICATION & inspect.signature(error.target).parameters.keys()
        here = f"the application comes first here: `{command} app.py ...`" if placed else "leave out --app here"
        return f"{here}; see `{command} --help`"
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _unknown_command(error.unused_tokens[0], error.command_chain or ())
    text = one_line(error).partition(" Available commands:")[0]  # The list is cut; --help has all.
    if isinstance(error, MissingArgumentError) and error.argument is not None and not text.endswith("?"):
        count, _ = error.argument.token_count()
        name = error.keyword or error.argument.name
        missing = f"{name} needs {'a value' if count == 1 else f'{count} values'}"
        if not name.startswith("-"):
            missing = f"say {name}: `{command} {name} ...`"
        return f"{missing}; see `{command} --help`"
    if isinstance(error, CoercionError) and error.msg is None and error.token and error.target_type in _NUMBERS:
        name = error.token.keyword or (error.argument.name if error.argument is not None else "the argument")
        return f'{name}: "{error.token.value}" is not {_NUMBERS[error.target_type]}; see `{command} --help`'
    return f"{text} See `{command} --help`" if text.endswith("?") else f"{text.rstrip('.')}; see `{command} --help`"


def _unknown_command(word: str, chain: Sequence[str]) -> str:
    """Says which command was probably meant: one of this group, or of any other."""
    group = build(whole=True)
    known = _command_paths(group)
    for each in chain:
        group = group[each]
    here = sorted(name for name in group if not name.startswith("-"))
    close = difflib.get_close_matches(word, here, 1)
    elsewhere = [] if chain else [path for path in known if path.split()[-1] == word]
    meant = [" ".join([*chain, *close])] if close else elsewhere
    command = " ".join(["tidemill", *chain])
    if meant:
        return f"unknown command {word!r}; did you mean `tidemill {meant[0]}`? See `{command} --help`"
    has = f"; there are {', '.join(here)}" if chain else ""
    return f"unknown command {word!r}{has}; see `{command} --help`"


def _command_paths(group: App, *before: str) -> list[str]:
    found: list[str] = []
    for name in group:
        if not name.startswith("-"):
            found += [" ".join((*before, name)), *_command_paths(group[name], *before, name)]
    return found
