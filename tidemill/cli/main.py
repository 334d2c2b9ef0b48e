"""The command line: `tidemill COMMAND`. One readable line for every error, and an exit status that says the kind.

0 done · 1 it did not work, and why is on stderr · 2 the command was not understood · 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidemill.cli.overview import ABOUT, COMMANDS, HELP, command_name, overview
from tidemill.core.errors import TidemillError
from tidemill.core.printable import printable
from tidemill.engine.containment.exit_status import EXIT_USAGE
from tidemill.version import VERSION

if TYPE_CHECKING:
    from cyclopts import App

DEBUG = "TIDEMILL_DEBUG"
EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 130, 141


def build(*, whole: bool = False) -> App:
    """The command line; `whole` loads every command."""
    from cyclopts import App, Group, Parameter  # the processes of `tidemill up` do without it

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
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["up"] or (words[:1] == ["worker"] and not any(word.startswith("--only") for word in words)):
        sys.exit(guarded(lambda: import_module("tidemill.cli.run.process_tree").run_from_copy(words)))
    sys.exit(run(words))


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit status. Every error becomes one message."""
    if list(arguments) in HELP:
        print(overview())
        return 0
    return guarded(lambda: _parse_and_run(list(arguments)))


def _parse_and_run(arguments: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        cli = build(whole=arguments[0] in ("--help", "-h"))
        status = cli(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        from tidemill.cli.usage_errors import usage_message

        return _print_error(usage_message(error), EXIT_USAGE)
    return status if isinstance(status, int) else 0


def guarded(command: Callable[[], int]) -> int:
    """Run this; returns the exit status. Every error becomes one message."""
    _log_to_stderr()
    try:
        status = command()
        sys.stdout.flush()
        return status
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
        return one_line(error) if len(str(error).splitlines()) <= 2 else str(error)
    if is_full(error):
        return f"the database cannot store anything now: {one_line(error)}; make room and try again"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return (
            f"cannot write{f' {error.filename}' if error.filename else ''}: {error.strerror}; make room and try again"
        )
    if isinstance(error, asyncpg.PostgresError):
        return f"the database refuses: {one_line(error)}"
    where = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"unexpected {type(error).__name__}: {one_line(error)} ({os.path.basename(where.filename)}:{where.lineno}); "
        f"run with {DEBUG}=1 to see where it came from"
    )


def one_line(error: BaseException) -> str:
    """The message of an error without its line breaks."""
    return " ".join(str(error).split()) or type(error).__name__


def _print_error(message: str, status: int) -> int:
    sys.stdout.flush()
    sys.stderr.write(f"error: {printable(message)}\n")
    return status


if __name__ == "__main__":
    main()
