"""The README's own program, put together from its pieces, is one that works."""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
from cyclopts.exceptions import CoercionError, CycloptsError, MissingArgumentError

from tests.support.cli import Process, environment, ok, wait_for
from tests.support.guide import blocks_of, program_of
from tidemill import App
from tidemill.cli.main import build

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "apps").glob("*/README.md")]


def test_the_pieces_of_the_readme_are_one_application() -> None:
    names: dict[str, object] = {"__name__": "readme", "__file__": str(README)}
    exec(compile(program_of(README), "README.md", "exec"), names)
    app = names["app"]
    assert isinstance(app, App)
    assert {"send_receipt", "refresh_prices", "etl.extract", "etl.clean", "etl.load"} <= {*app.declarations.tasks}
    assert [*app.runs.flows] == ["Article"]
    assert [*app.streams.declared] == ["comments"]
    assert [*app.pipelines.declared] == ["blog"]
    assert [*app.monitors] == ["machines"]


def test_the_commands_of_the_readme_work_as_they_stand(tmp_path: Path) -> None:
    """But for those that install it, which have a test of the wheel, and `make`, which is what runs this."""
    (dag,) = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)
    # A schedule that fires just then would take the first number.
    (tmp_path / "app.py").write_text(program_of(README).replace("*/5 * * * *", "0 4 29 2 *"))
    (tmp_path / "nightly.yaml").write_text(dag)
    up, enqueue, job, check, start, submit, show = commands_of(README.read_text())
    with contextlib.closing(Process(tmp_path, *up)) as running:
        assert running.line("serving http://")
        running.line("worker started")
        number = ok(tmp_path, *enqueue).strip()
        assert number == "1"
        wait_for(tmp_path, number, lambda found: found["state"] == "succeeded")
        assert "Succeeded at attempt 1" in ok(tmp_path, *job)
        begin_the_run(tmp_path)
        ok(tmp_path, "send", "r1", "Approved", '{"ok": true}')
        assert "nightly" in ok(tmp_path, *check)
        with contextlib.closing(Process(tmp_path, *start)) as following:
            following.line("Load 120 rows?")
            ok(tmp_path, *submit)
            assert following.wait() == 0
        tree = ok(tmp_path, *show)
        assert "succeeded" in tree
        assert "load" in tree
        assert "published" in ok(tmp_path, "run", "r1")


def begin_the_run(folder: Path) -> None:
    """Run the block that uses the workflow, as a script beside the application."""
    (block,) = [block.source for block in blocks_of(README) if "app.start(" in block.source]
    script = f"import asyncio\n\nfrom app import *\n\n\nasync def main():\n{textwrap.indent(block, '    ')}\n"
    script += "    assert (result, handle.id) == ('published', 1)\n    await app.close()\n\n\nasyncio.run(main())\n"
    (folder / "begin.py").write_text(script)
    ended = subprocess.run([sys.executable, "begin.py"], cwd=folder, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_every_guide_that_is_linked_exists() -> None:
    missing = [
        f"{page.name}: {link}"
        for page in PAGES
        for link in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []


def commands_of(text: str) -> list[list[str]]:
    """The lines of blocks that begin with our name, as a shell would read them."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    lines = (line for language, block in blocks if language in ("", "sh", "bash") for line in block.splitlines())
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("tidemill ")]


def mentioned_commands(text: str) -> list[list[str]]:
    """Commands within sentences and tables, and those that are shown with their output."""
    shown = re.findall(r"^\$ tidemill (.*)$", text.replace("\\\n", " "), re.MULTILINE)
    inline = re.findall(r"`tidemill ([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [shlex.split(re.sub(r"[|;>].*", "", line), comments=True) for line in (*shown, *inline)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_guide_is_one_that_can_be_given(page: Path) -> None:
    cli = build(whole=True)
    wrong: list[str] = []
    for words in commands_of(page.read_text()):
        try:
            command, bound, _ = cli.parse_args(words, exit_on_error=False, print_error=False)
            inspect.signature(command).bind(*bound.args, **bound.kwargs)
        except (CycloptsError, TypeError) as error:
            wrong.append(f"{shlex.join(words)}: {error}")
    assert wrong == []


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: str(page.relative_to(ROOT))
)
def test_every_command_that_a_guide_mentions_exists_with_its_options(page: Path) -> None:
    """It may be mentioned without its arguments; the changelog names commands of the past."""
    cli = build(whole=True)
    wrong: list[str] = []
    for words in mentioned_commands(page.read_text()):
        with contextlib.suppress(MissingArgumentError, CoercionError):
            _, _, left = cli.parse_known_args(words)[:3]
            wrong += [f"{shlex.join(words)}: {left}"] if left else []
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_and_module_in_a_sentence_exists(page: Path) -> None:
    written = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
    folders = "tidemill|tests|examples|apps|web|benchmarks|docs"
    paths = [each for each in written if re.fullmatch(rf"({folders})/[\w./-]+", each)]
    modules = [each for each in written if re.fullmatch(r"tidemill(\.[a-z_]+)+", each)]
    built = ("tidemill/server/static", "web/src/api/schema.d.ts")
    assert [each for each in paths if not (ROOT / each).exists() and not each.startswith(built)] == []
    assert [each for each in modules if not _is_module(each)] == []


def _is_module(name: str) -> bool:
    """Whether it is a module, a name in one, or a table, which has the schema's name before it."""
    place = ROOT.joinpath(*name.split("."))
    if place.is_dir() or place.with_suffix(".py").is_file():
        return True
    above, _, last = name.rpartition(".")
    return name == "tidemill.log_message" or (above.count(".") > 0 and hasattr(import_module(above), last))


def test_the_guides_do_show_commands() -> None:
    assert sum(len(commands_of(page.read_text())) for page in PAGES) > 80
