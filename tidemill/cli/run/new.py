"""`tidemill new`: the files of a new application, with work of every shape and tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tidemill.core.errors import ConfigError

TEMPLATE = Path(__file__).parent / "template"
RENAMED = {"gitignore": (".gitignore", ".dockerignore")}


def new(folder: Annotated[Path, Parameter(help="The folder to make; its name is the application's.")], /) -> None:
    """Make the folder of a new application: work of every shape, tests, a compose file."""
    name = folder.resolve().name
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        raise ConfigError(f"{name!r} cannot name an application: use small letters, digits, - and _")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another folder")
    for path in sorted(TEMPLATE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            place = folder / path.relative_to(TEMPLATE)
            place.parent.mkdir(parents=True, exist_ok=True)
            for each in RENAMED.get(place.name, (place.name,)):
                place.with_name(each).write_text(path.read_text().replace("NAME", name))
    print(f"{folder} is ready:\n\n  cd {folder}\n  tidemill dev app.py\n")
