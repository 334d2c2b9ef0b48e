"""What tests of pipelines share: a folder of files, a module that can be changed, a pipeline brought up to date."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

from tidemill.pipelines import Pipeline
from tidemill.pipelines.reducer.plan import BuildPlan
from tidemill.pipelines.runner.driver import Driver, run_once
from tidemill.pipelines.stores.folder_walk import RACY_NS
from tidemill.pipelines.view.pipeline_view import PipelineView
from tidemill.store.database import Database


def put(root: Path, files: Mapping[str, str]) -> None:
    """Write files, with the folders that they are in."""
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


def tree(root: Path) -> dict[str, str]:
    """All files under a folder that are not hidden."""
    return {
        str(path.relative_to(root)): path.read_text(errors="surrogateescape")
        for path in sorted(root.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    }


def load_source(folder: Path, name: str, text: str) -> ModuleType:
    """A module of a user's project, as it is after they have saved it and started again."""
    file = folder / f"{name}.py"
    file.write_text(text)
    return load_file(file)


def load_file(file: Path) -> ModuleType:
    """The module in a file, imported again."""
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    # Compiled from the text: the byte code that Python keeps is told apart by seconds and sizes only.
    exec(compile(file.read_text(), str(file), "exec"), vars(module))
    return module


async def update(database: Database, pipeline: Pipeline) -> BuildPlan:
    """Bring a pipeline up to date; returns what is left to do."""
    return await run_once(Driver(database, pipeline))


async def look(database: Database, pipeline: Pipeline) -> BuildPlan:
    """What is to be done about a pipeline."""
    pipeline_view = PipelineView(database, pipeline)
    await pipeline_view.load()
    await pipeline_view.keep_codes()
    await pipeline_view.scan()
    await pipeline_view.read_unknown()
    return pipeline_view.plan()


def until_trusted(path: Path) -> None:
    """Wait until a file is old enough that its signature tells of every change."""
    while time.time_ns() - os.stat(path).st_ctime_ns < 3 * RACY_NS:
        time.sleep(0.01)


def wanted(plan: BuildPlan) -> dict[str, str]:
    """The states that a plan would build, and why."""
    return {f"{step.stage.name}/{step.entity}": type(step.reason).__name__ for step in plan.builds}


def held(plan: BuildPlan) -> dict[str, str]:
    """The states that a plan holds back, and why."""
    return {f"{step.stage.name}/{step.entity}": type(step.reason).__name__ for step in plan.holds}


def books(root: Path) -> Pipeline:
    """One state becomes many, and many one: books have pages, which are counted."""
    pipeline = Pipeline("books", root=root)

    @pipeline.stage(input="book/{id}.txt", output="page/{id}/{n:int}.txt", scatter=True, in_process=True)
    def pages(entity, text):
        return dict(enumerate(text.split("|"), 1))

    @pipeline.stage(input="page/{id}/{n:int}.txt", output="count/{id}.txt", collect="n", in_process=True)
    def count(entity, files):
        return str(len(files))

    return pipeline
