"""A folder of workflow files: what they currently declare, re-read when they change.

    folder = WorkflowFolder("workflows")
    folder.refresh()              whether something has changed since the last call
    folder.pipelines              by name; the pipeline of an unchanged file is the same object
    folder.errors                 by file: why its current content is not in use

A file that cannot be read, or that conflicts with others, changes nothing: its previous declarations stay in use. Files
in subfolders count too; dags, hidden files and symlinks are skipped.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from tidemill.core.codec import storable
from tidemill.core.errors import ConfigError, TidemillError
from tidemill.pipelines.definition.pipeline import Pipeline, check_order
from tidemill.pipelines.workflows.load import load_data, read_file
from tidemill.pipelines.workflows.read import Loaded, TriggerWorkflow, form_of, merge_loaded

MOST_FILES = 500
MOST_DEPTH = 4

#: Identifies a version of a file: its modification time, size and inode.
Signature = tuple[int, int, int]


class Filed(msgspec.Struct, frozen=True):
    """A file as of the last refresh, its declarations in use, and why they are not the current ones."""

    signature: Signature
    loaded: Loaded
    error: str | None = None


class WorkflowFolder:
    """One folder or file, and its declarations in use."""

    def __init__(self, path: str | Path, beside: Callable[[], Loaded] = Loaded, *, allow_unknown: bool = False) -> None:
        """`beside` returns the program's own declarations, which must not conflict."""
        self.path = Path(path)
        self.pipelines: dict[str, Pipeline] = {}
        self.triggers: dict[str, TriggerWorkflow] = {}
        self.version = 0
        """Increases with every change."""
        self._beside = beside
        self._allow_unknown = allow_unknown
        self._files: dict[str, Filed] = {}

    @property
    def errors(self) -> dict[str, str]:
        """Errors by file name."""
        return {storable(name): storable(filed.error) for name, filed in self._files.items() if filed.error is not None}

    def errors_of(self, pipeline: str) -> list[str]:
        """The errors of the file that declares this pipeline."""
        return [
            storable(filed.error)
            for filed in self._files.values()
            if filed.error is not None and any(each.name == pipeline for each in filed.loaded.pipelines)
        ]

    @property
    def notes(self) -> list[str]:
        """Fields of the files that are unknown and have no effect."""
        return [storable(note) for filed in self._files.values() for note in filed.loaded.notes]

    def refresh(self) -> bool:
        """Re-read changed files; returns whether something has changed."""
        found = dict(self._scan())
        if found == {name: filed.signature for name, filed in self._files.items()}:
            return False
        if not found and not self.path.exists():
            return False  # An unreadable folder has not lost its files.
        # A file that conflicted with another may be valid now.
        new = [
            name
            for name, signature in found.items()
            if (known := self._files.get(name)) is None or known.signature != signature or known.error is not None
        ]
        files = {name: filed for name, filed in self._files.items() if name in found}
        self._files = self._taken(files, {name: found[name] for name in new})
        now = merge_loaded(filed.loaded for filed in self._files.values())
        self.pipelines = {pipeline.name: pipeline for pipeline in now.pipelines}
        self.triggers = {trigger.name: trigger for trigger in now.triggers}
        self.version += 1
        return True

    def _scan(self) -> Iterator[tuple[str, Signature]]:
        if not self.path.is_dir():
            if self.path.exists():
                yield self.path.name, _signature(self.path)
            return
        count = 0
        for place, folders, names in os.walk(self.path):
            inside = Path(place).relative_to(self.path)
            folders[:] = sorted(each for each in folders if not each.startswith("."))
            if len(inside.parts) == MOST_DEPTH:
                folders.clear()
            for name in sorted(names):
                file = Path(place) / name
                if name.endswith(".json") and not name.startswith(".") and _is_own_file(file):
                    count += 1
                    if count > MOST_FILES:
                        return
                    try:
                        yield (inside / name).as_posix(), _signature(file)
                    except OSError:
                        continue  # It was removed meanwhile.

    def _taken(self, files: dict[str, Filed], new: Mapping[str, Signature]) -> dict[str, Filed]:
        """Add the new files: all at once if they are consistent, otherwise those that are."""
        read: dict[str, Loaded | TidemillError] = {name: self._read(name) for name in new}
        fine = {name: Filed(new[name], one) for name, one in read.items() if isinstance(one, Loaded)}
        try:
            self._check({**files, **fine}.values())
            files = {**files, **fine}
            fine = {}
        except ConfigError:
            pass  # Checked one by one below.
        for name, filed in fine.items():
            try:
                self._check({**files, name: filed}.values())
                files = {**files, name: filed}
            except ConfigError as error:
                read[name] = error
        for name, one in read.items():
            if isinstance(one, TidemillError):
                before = files[name].loaded if name in files else Loaded()
                files = {**files, name: Filed(new[name], before, str(one))}
        return dict(sorted(files.items()))

    def _read(self, name: str) -> Loaded | TidemillError:
        file = self.path / name if self.path.is_dir() else self.path
        try:
            data, lines = read_file(file)
            if file != self.path and (not isinstance(data, Mapping) or form_of(data) is None):
                return Loaded()  # Not a workflow file.
            return load_data(data, lines, file, allow_unknown=self._allow_unknown)
        except TidemillError as error:
            return error

    def _check(self, files: Iterable[Filed]) -> None:
        """Raise an error if these files conflict with each other or with the program."""
        now, own = merge_loaded(filed.loaded for filed in files), self._beside()
        _check_names("pipeline", [each.name for each in now.pipelines], [each.name for each in own.pipelines])
        _check_names("workflow", [each.name for each in now.triggers], [each.name for each in own.triggers])
        check_order(stage for pipeline in [*own.pipelines, *now.pipelines] for stage in pipeline.stages.values())


def read_folder(path: str | Path, *, allow_unknown: bool = False) -> WorkflowFolder:
    """A folder or file; an error if none of its workflows can be used. `errors` has those that cannot."""
    folder = WorkflowFolder(path, allow_unknown=allow_unknown)
    if not folder.path.exists():
        raise ConfigError(f"there is no workflow file or folder {path}")
    folder.refresh()
    if not folder.pipelines and not folder.triggers:
        raise ConfigError("\n".join(folder.errors.values()) or f"{path} contains no workflow")
    return folder


def _check_names(what: str, names: Iterable[str], own: Collection[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"two files declare a {what} {name!r}: give one of them another name")
        if name in own:
            raise ConfigError(
                f"the program itself declares a {what} {name!r}, which takes precedence: "
                "give this one another name, or take it out of the program"
            )
        seen.add(name)


def _is_own_file(file: Path) -> bool:
    """Whether this is a regular file: no link, and no pipe, whose reader would wait for a writer."""
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except OSError:
        return False


def _signature(file: Path) -> Signature:
    about = file.stat()
    return about.st_mtime_ns, about.st_size, about.st_ino
