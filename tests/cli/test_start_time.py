"""What the quick paths of the command line show is what the slow ones would."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemill.cli.main import build
from tidemill.version import VERSION


def test_the_page_with_all_commands_is_the_same_without_loading_them(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for cli in (build(whole=True), build(summaries=True)):
        cli(["--help"], result_action="return_value")
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1], "write the first paragraph of the help of each command into tidemill/cli/summaries.py"


@pytest.mark.parametrize(
    ("option", "shows", "without"),
    [
        ("--version", VERSION, ("asyncio", "cyclopts", "structlog", "asyncpg")),
        ("--help", "Start everything", ("asyncpg", "structlog", "pydantic", "tidemill.app", "tidemill.cli.jobs.list")),
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
