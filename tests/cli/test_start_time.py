"""What the quick paths of the command line show is what the slow ones would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemill.cli.main import build
from tidemill.cli.overview import COMMANDS, command_name, overview
from tidemill.cli.summaries import SUMMARIES
from tidemill.version import VERSION


def test_the_page_with_all_commands_has_the_first_paragraph_of_the_help_of_each() -> None:
    cli, page = build(whole=True), " ".join(overview().split())
    for name in (command_name(place) for places in COMMANDS.values() for place in places):
        first = " ".join((cli[name].help or "").strip().partition("\n\n")[0].split())
        assert SUMMARIES[name] == first, "write it into tidemill/cli/summaries.py"
        assert f"{name} {first}" in page


@pytest.mark.parametrize(
    ("option", "shows", "without"),
    [
        ("--version", VERSION, ("asyncio", "cyclopts", "structlog", "asyncpg")),
        ("--help", "Start everything", ("asyncpg", "structlog", "pydantic", "cyclopts", "rich", "tidemill.app")),
    ],
)
def test_what_needs_no_application_loads_none(option: str, shows: str, without: tuple[str, ...]) -> None:
    program = (
        f"import sys\nsys.argv = ['tidemill', {option!r}]\nfrom tidemill.cli.start import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"loaded = [name for name in {without!r} if name in sys.modules]\nassert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout
