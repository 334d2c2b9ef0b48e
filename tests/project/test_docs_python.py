"""The Python of every page is right: what it imports exists, and what it calls takes those arguments."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.guide import blocks_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

TUTORIAL = ROOT / "docs" / "tutorial.md"

#: What a reader has in mind already: the package's names, an application, a step's context, event and connection.
KNOWN = """from tidemill import *; from tidemill.{shape} import *; from contextlib import asynccontextmanager; \
from typing import Annotated, Any, cast; from datetime import *; from tidemill import flows as _flows; \
app = App("docs"); ctx = cast({context}, None); ev = connection = cast(Any, None)"""

#: Pages show parts of programs: `await` without a function around it, and names of the reader's own.
ALLOWED = {None, "reportUndefinedVariable", "reportWildcardImportFromLibrary", "reportRedeclaration"}


def python_of(page: Path) -> str:
    """The Python of a page as one module, each line at the number that it has in the page."""
    lines, is_python = [], False
    for line in page.read_text().splitlines():
        if line.startswith("```"):
            is_python = line == "```python"
        lines.append(line if is_python and not line.startswith("```") else "")
    shape = page.stem if (ROOT / "tidemill" / page.stem / "__init__.py").exists() else "flows"
    context = "_flows.Context" if shape == "flows" else "Any"
    return "\n".join([KNOWN.format(shape=shape, context=context), *lines[1:]]) if any(lines) else ""


@pytest.mark.long
def test_the_python_of_every_page_is_right(tmp_path: Path) -> None:
    for page in [each for each in PAGES if each != TUTORIAL]:
        (tmp_path / f"{page.stem.lower()}.py").write_text(python_of(page))
    for name in ("app.py", "test_app.py"):  # The tutorial has two files, and one imports the other.
        parts = [each.source for each in blocks_of(TUTORIAL) if each.source.startswith(f"# {name}\n")]
        (tmp_path / name).write_text("\n\n".join(parts))
    settings = {"typeCheckingMode": "basic", "extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    found = json.loads(ran.stdout)["generalDiagnostics"]
    wrong = [
        f"{Path(each['file']).stem}.md:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found
        if each.get("rule") not in ALLOWED
    ]
    assert wrong == []
    assert len(found) > 20, "nothing was checked"


def test_the_pages_do_show_python() -> None:
    assert sum(len(re.findall(r"^```python$", page.read_text(), re.MULTILINE)) for page in PAGES) > 40
