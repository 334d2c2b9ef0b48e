"""What keeps the package easy to find one's way in: short files, and class names that mean one thing."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import tidemill

PACKAGE = Path(tidemill.__file__).parent
MOST_LINES = 500

#: Longer than a file should be. None may be added; a file that has become shorter is taken out.
LONG_FILES: set[str] = set()

#: Classes whose public name is that of another on purpose.
SHARED_NAMES = {"Context", "Event", "StateStore"}


def sources() -> dict[str, str]:
    """The text of each module of the package, without generated ones and the template of `tidemill new`."""
    found = (path for path in PACKAGE.rglob("*.py") if not path.stem.endswith("_pb2"))
    return {
        path.relative_to(PACKAGE).as_posix(): path.read_text()
        for path in found
        if not {"static", "template"} & set(path.relative_to(PACKAGE).parts)
    }


def test_no_file_of_the_package_is_too_long_to_read() -> None:
    long = {name for name, text in sources().items() if text.count("\n") > MOST_LINES}
    assert long <= LONG_FILES, "split them by role, into files named for what an engineer would search"


def test_a_class_name_means_one_thing_in_the_package() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(name)
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert twice.keys() <= SHARED_NAMES, twice
