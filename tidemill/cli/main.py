"""The command line: `tidemill COMMAND`. One readable line for every error, and an exit status that says the kind.

0 done · 1 it did not work, and why is on stderr · 2 the command was not understood · 130 interrupted.
"""

from __future__ import annotations

import difflib
import errno
import inspect
import os
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from cyclopts import App, CycloptsError, Group, Parameter
from cyclopts.exceptions import UnknownCommandError, UnusedCliTokensError

from tidemill.cli.overview import ABOUT, COMMANDS, HELP, command_name, overview
from tidemill.core.errors import TidemillError
from tidemill.core.printable import printable
from tidemill.engine.containment.exit_status import EXIT_USAGE
from tidemill.version import VERSION

DEBUG = "TIDEMILL_DEBUG"
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141


def build(*, whole: bool = False) -> App:
    """The command line; `whole` loads every command."""
    cli = App(
        name="tidemill",
        version=VERSION,
        help=ABOUT,
        default_parameter=Parameter(negative=""),
    )
    group = None
    for number, (title, places) in enumerate(COMMANDS.items(), 1):
        group = Group(title, sort_key=number)
        for place in places:
            module, _, attribute = place.partition(" ")[0].partition(":")
            path = f"tidemill.cli.{module}"
            found: Any = getattr(import_module(path), attribute) if whole else f"{path}:{attribute}"
            if isinstance(found, App):
                found.group = group
                cli.command(found)
            else:
                cli.command(found, name=command_name(place), group=group)
    cli["--help"].group = cli["--version"].group = group
    return cli


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. Every error becomes one message."""
    if list(arguments) in HELP:
        print(overview())
        return 0
    _log_to_stderr()
    try:
        cli = build(whole=arguments[0] in ("--help", "-h"))
        status = cli(list(arguments), exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except CycloptsError as error:
        return _print_error(_usage(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader is gone; the interpreter must not report that again at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        return _print_error(message_of(error), 1)


def _log_to_stderr() -> None:
    """Keep log lines out of stdout, which is for results."""
    import tidemill.cli.plain_structlog  # isort: skip # noqa: F401 - before anything loads structlog
    import structlog

    if not structlog.is_configured():
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def message_of(error: BaseException) -> str:
    """What went wrong, for the person who gave the command."""
    import asyncpg  # slow to load, and most commands do not fail

    from tidemill.store.database_errors import is_full

    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TidemillError) or (isinstance(error, TimeoutError) and str(error)):
        # A hint of PostgreSQL's joins its line; the end of a server's log stays as it is.
        return _one_line(error) if len(str(error).splitlines()) <= 2 else str(error)
    if is_full(error):
        return f"the database cannot store anything now: {_one_line(error)}; make room and try again"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"cannot write{f' {error.filename}' if error.filename else ''}: {error.strerror}; make room and try again"
        )
    if isinstance(error, asyncpg.PostgresError):
        return f"the database refuses: {_one_line(error)}"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__}: {_one_line(error)} ({os.path.basename(where.filename)}:{where.lineno}); "
        f"run with {DEBUG}=1 to see where it came from"
    )


def _usage(error: CycloptsError) -> str:
    command = " ".join(["tidemill", *(error.command_chain or ())])
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        app = inspect.signature(error.target).parameters.get("app") if error.target else None
        file = next((word for word in sys.argv[1:] if word.endswith(".py")), None)
        is_option = app is not None and app.kind is app.KEYWORD_ONLY
        hint = f"; the application is an option of this command: --app {file}" if file and is_option else ""
        return f"{error.unused_tokens[0]!r} is one argument too many{hint}; see `{command} --help`"
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        return _unknown_command(error.unused_tokens[0], error.command_chain or ())
    said = _one_line(error).partition(" Available commands:")[0]  # Only some of them; --help has all.
    return f"{said} See `{command} --help`" if said.endswith("?") else f"{said.rstrip('.')}; see `{command} --help`"


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


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _print_error(message: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"error: {printable(message)}\n")
    return status


if __name__ == "__main__":
    main()
