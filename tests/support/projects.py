"""A user's project with a pipeline, whose source can be changed and which is then started again."""

from __future__ import annotations

from pathlib import Path

from tests.support.pipelines import load_source
from tidemill.pipelines import Pipeline

MODULE = """
from tidemill.pipelines import Pipeline
import texts

p = Pipeline("blog", root={root!r})
calls = []
PROMPT = "short"

@p.stage(input="in/{{id}}.txt", output="mid/{{id}}.txt", in_process=True)
def first(entity, text):
    calls.append(("first", entity.id))
    return text.strip().split("#")[0]

@p.stage(input="mid/{{id}}.txt", output="out/{{id}}.txt", in_process=True, params={{"model": "small"}})
def second(entity, text, model):
    calls.append(("second", entity.id))
    return texts.decorate(text) + PROMPT + model
"""
TEXTS = '''
MARK = "!"

def decorate(text):
    """Decorates a text."""
    return inner(text) + MARK

def inner(text):
    return text.upper()

def unused(text):
    return text
'''


class Project:
    """A user's project of two modules."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "states"
        self.files = {"texts": TEXTS, "blogmod": MODULE.format(root=str(self.root))}

    def start(self, **changes: tuple[str, str]) -> Pipeline:
        """Start the program again, with texts replaced in its modules."""
        for name, (old, new) in changes.items():
            assert old in self.files[name]
            self.files[name] = self.files[name].replace(old, new)
        for name, text in self.files.items():
            self.module = load_source(self.folder, name, text)
        return self.module.p

    @property
    def calls(self) -> list[tuple[str, str]]:
        return sorted(self.module.calls)
