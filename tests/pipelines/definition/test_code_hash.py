"""Code hashes: every edit that could change a result counts, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pipelines import load_source
from tidemill.pipelines.definition.code_hash import CodeHash, changed_parts, hash_code

HELP = '''
LIMITS = {"low": 1, "high": [2, 3]}

def clean(text, times=2):
    return text.strip() * times

class Base:
    def shared(self):
        return 1

class Shape(Base):
    """A shape."""
    sides = 4

    def area(self):
        return self.sides + scale()

def scale():
    return 10

def wrap(function):
    def inner(*args):
        return function(*args) + 1
    return inner

class Client:
    def __init__(self, model):
        self.model = model
        self._cache = {}
'''
MAIN = '''
import functools
import json
import hashes_help
from hashes_help import Client, Shape, wrap

PROMPT = "say it"
client = Client("small")

def maker(factor):
    def made(value):
        return value * factor
    return made

double = maker(2)
bounded = functools.partial(hashes_help.clean, times=3)

@wrap
def counted(value):
    return len(value)

def stage(entity, text, mode="plain"):
    """What it does."""
    local = hashes_help.clean(text)  # cleaned
    return json.dumps([local, PROMPT, double(1), Shape().area(), counted(text), client.model, bounded(text), mode,
                       hashes_help.LIMITS])

def bystander():
    return 1
'''


def hashed(folder: Path, help: str = HELP, main: str = MAIN) -> CodeHash:
    load_source(folder, "hashes_help", help)
    return hash_code(load_source(folder, "hashes_main", main).stage)


@pytest.mark.parametrize(
    ("where", "old", "new"),
    [
        ("help", "text.strip() * times", "text.strip() + str(times)"),
        ("help", "times=2", "times=4"),
        ("help", '"high": [2, 3]', '"high": [2, 4]'),
        ("help", "return 10", "return 11"),
        ("help", "sides = 4", "sides = 5"),
        ("help", "return 1\n", "return 7\n"),
        ("help", "function(*args) + 1", "function(*args) + 2"),
        ("main", 'Client("small")', 'Client("large")'),
        ("main", "maker(2)", "maker(3)"),
        ("main", "times=3", "times=5"),
        ("main", "return len(value)", "return len(value) + 1"),
        ("main", '"say it"', '"say it well"'),
        ("main", 'mode="plain"', 'mode="fancy"'),
        ("main", "return value * factor", "return value ** factor"),
    ],
)
def test_an_edit_that_could_change_a_result_counts(tmp_path: Path, where: str, old: str, new: str) -> None:
    before = hashed(tmp_path)
    sources = {"help": HELP, "main": MAIN}
    assert old in sources[where]
    sources[where] = sources[where].replace(old, new, 1)
    after = hashed(tmp_path, **sources)
    assert before.total != after.total
    assert changed_parts(before.parts, after.parts)


@pytest.mark.parametrize(
    ("where", "old", "new"),
    [
        ("help", '"""A shape."""', '"""A round shape."""'),
        ("main", '"""What it does."""', '"""Does it."""'),
        ("main", "# cleaned", "# made clean"),
        ("main", "local = hashes_help.clean(text)", "local = (\n        hashes_help.clean( text )\n    )"),
        ("main", "def bystander():\n    return 1", "def bystander():\n    return 2"),
        ("main", "import json\n", "import json\n\n\n"),
    ],
)
def test_an_edit_that_changes_nothing_does_not_count(tmp_path: Path, where: str, old: str, new: str) -> None:
    before = hashed(tmp_path)
    sources = {"help": HELP, "main": MAIN}
    assert old in sources[where]
    sources[where] = sources[where].replace(old, new, 1)
    assert hashed(tmp_path, **sources).total == before.total


def test_parts_are_named_so_that_people_know_what_changed(tmp_path: Path) -> None:
    parts = hashed(tmp_path).parts
    assert {
        "hashes_main.stage",
        "hashes_main.PROMPT",
        "hashes_help.clean",
        "hashes_help.Shape",
        "hashes_help.Base",
    } <= set(parts)
    assert "hashes_main.bystander" not in parts
    assert not any(name.startswith("json") for name in parts)


def test_a_function_without_a_source_is_known_by_its_byte_code() -> None:
    made: dict = {}
    exec("def stage(entity, text):\n    return text + MORE\nMORE = 'x'\n", made)
    first = hash_code(made["stage"]).total
    made["MORE"] = "y"
    assert hash_code(made["stage"]).total != first


def test_functions_that_name_each_other_are_followed_once(tmp_path: Path) -> None:
    module = load_source(tmp_path, "hashes_round", "def even(n):\n    return n == 0 or odd(n - 1)\n"
                         "def odd(n):\n    return n != 0 and even(n - 1)\n")  # fmt: skip
    assert set(hash_code(module.even).parts) == {"hashes_round.even", "hashes_round.odd"}


def test_the_environment_and_the_arguments_of_a_process_are_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """
import os, string, sys
from os import environ

def reads(entity, text):
    return os.environ.get("MODEL", "small") + environ["HOME"] + sys.argv[0] + sys.path[0] + string.ascii_letters
"""
    before = hash_code(load_source(tmp_path, "hashes_surroundings", text).reads)
    monkeypatch.setenv("SHLVL", "another")
    monkeypatch.setattr("sys.argv", ["another", "command"])
    monkeypatch.syspath_prepend(tmp_path / "another")
    assert hash_code(load_source(tmp_path, "hashes_surroundings", text).reads) == before
    assert set(before.parts) == {"hashes_surroundings.reads"}
