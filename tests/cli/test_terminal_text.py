"""Names, errors and messages come from anywhere: a terminal shows what they contain, and obeys none of it."""

from __future__ import annotations

import sys

import msgspec
import pytest
from rich.console import Group, RenderableType
from rich.text import Text

from tidemill.cli.main import _print_error
from tidemill.cli.render import out, print_json, table
from tidemill.core.printable import on_one_line, printable

EVIL = "evil\x1b[31m\x1b]0;title\x07\x9b2J\u202e\r"


def cells() -> RenderableType:
    made = table("name", "state", wide="state")
    made.add_row(f"{EVIL}\nsecond", Text(EVIL, style="red"))
    return made


@pytest.mark.parametrize(
    "shown",
    [EVIL, Text(EVIL), Text.assemble(("bold ", "bold"), EVIL), cells(), Group(EVIL, Text(EVIL))],
    ids=["text", "styled", "assembled", "table", "group"],
)
def test_a_terminal_gets_no_escapes_from_names(shown: RenderableType, capsys: pytest.CaptureFixture[str]) -> None:
    out().print(shown)
    printed = capsys.readouterr().out
    assert printable(printed) == printed
    assert "evil\\x1b[31m" in printed


def test_a_name_with_a_line_break_takes_one_row_of_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    out().print(cells())
    assert len(capsys.readouterr().out.splitlines()) == 3  # the head, a line, and the row


def test_styles_of_our_own_still_reach_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = out()
    console.print(Text(EVIL, style="red"))
    printed = capsys.readouterr().out
    assert printed.startswith("\x1b[31mevil\\x1b[31m")


def test_json_stays_the_same_document_without_characters_that_a_terminal_obeys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_json({"name": EVIL, "\x85": "ü\x7f"})
    printed = capsys.readouterr().out
    assert printable(printed) == printed
    assert "ü" in printed
    assert msgspec.json.decode(printed) == {"name": EVIL, "\x85": "ü\x7f"}


def test_an_error_with_escapes_in_it_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert _print_error(f"there is no queue {EVIL}", 1) == 1
    said = capsys.readouterr().err
    assert said == f"error: there is no queue {on_one_line(EVIL)}\n"


def test_ordinary_names_stay_as_they_are() -> None:
    for name in ("press-1", "größe 7", "机器", "👩‍🔬", "قسم"):
        assert printable(name) == on_one_line(name) == name
