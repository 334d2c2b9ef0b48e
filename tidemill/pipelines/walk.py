"""A walk over folders that looks at no more of them than patterns ask for, and at each of them once."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.pipelines.pattern import Pattern, Segment
from tidemill.pipelines.states import Survey

#: A file that was changed within this time before it is looked at may be changed again unnoticed: clocks are coarse.
RACY_NS = 50_000_000

Fits = Callable[[str], bool]


class Known(Protocol):
    """Signatures that are known already."""

    def get(self, path: str, /) -> int | None: ...


class _Node:
    """A place in the tree of patterns: what may follow here."""

    def __init__(self) -> None:
        self.literal: dict[str, _Node] = {}
        self.open: list[tuple[Fits, _Node, str]] = []
        self.files: list[tuple[Fits, Pattern]] = []
        self.names: dict[str, list[Pattern]] = {}

    def child(self, segment: Segment, pattern: Pattern) -> _Node:
        if segment.is_literal:
            return self.literal.setdefault(segment.text, _Node())
        for _, node, text in self.open:
            if text == segment.text:
                return node
        node = _Node()
        self.open.append((_fits(segment, pattern), node, segment.text))
        return node


class Walk:
    """One walk for many patterns."""

    def __init__(self, root: str, patterns: Sequence[Pattern], known: Known | None = None) -> None:
        """With `known` signatures, only files that are not among them are looked at."""
        self._root = root
        self._known = known
        self._survey = Survey({}, {pattern: {} for pattern in patterns}, [], set(), {})
        self._tree = _Node()
        for pattern in self._survey.matched:
            node = self._tree
            for segment in pattern.segments[:-1]:
                node = node.child(segment, pattern)
            last = pattern.segments[-1]
            if last.is_literal:
                node.names.setdefault(last.text, []).append(pattern)
            else:
                node.files.append((_fits(last, pattern), pattern))

    def run(self) -> Survey:
        self._limit = time.time_ns() - RACY_NS
        self._enter("", self._tree)
        return self._survey

    def _enter(self, folder: str, node: _Node) -> None:
        for name, inner in node.literal.items():
            self._enter(f"{folder}{name}/", inner)
        if not node.files and not node.open:
            for name, patterns in node.names.items():
                self._look(folder + name, patterns)
            return
        try:
            self._list(folder, node)
        except FileNotFoundError:
            return
        except NotADirectoryError:
            return
        except OSError as error:
            self._survey.problems.append(f"{self._root}/{folder} cannot be looked at: {error.strerror}")

    def _list(self, folder: str, node: _Node) -> None:
        survey, limit, known = self._survey, self._limit, self._known
        signatures, racy = survey.signatures, survey.racy
        named, open_nodes = node.names, node.open
        targets = [(fits, survey.matched[pattern]) for fits, pattern in node.files]
        opened = os.open(f"{self._root}/{folder}", os.O_RDONLY | os.O_DIRECTORY)
        survey.folders[folder] = os.fstat(opened).st_mtime_ns
        inner: list[tuple[str, _Node]] = []
        try:
            if len(targets) == 1 and not named and not open_nodes and known is None:
                self._list_plain(folder, opened, *targets[0])
                return
            with os.scandir(opened) as entries:
                for entry in entries:
                    name = entry.name
                    if open_nodes and entry.is_dir():
                        inner += [(name, child) for fits, child, _ in open_nodes if fits(name)]
                        continue
                    hit = [matched for fits, matched in targets if fits(name)]
                    if name in named:
                        hit += [survey.matched[pattern] for pattern in named[name]]
                    if not hit:
                        continue
                    if not name.isascii() and not _is_text(name):
                        self._note_odd_name(folder, name)
                        continue
                    path = folder + name
                    if known is not None and (there := known.get(path)):
                        signatures[path] = there
                        for matched in hit:
                            matched[path] = None
                        continue
                    try:
                        found = os.stat(name, dir_fd=opened)
                    except OSError as error:
                        if not isinstance(error, FileNotFoundError):
                            survey.problems.append(f"{self._root}/{folder}{name}: {error.strerror}")
                        continue
                    if not stat.S_ISREG(found.st_mode):
                        continue
                    signatures[path] = signature(found)
                    if found.st_ctime_ns >= limit:
                        racy.add(path)
                    for matched in hit:
                        matched[path] = None
        finally:
            os.close(opened)
        for name, child in inner:
            if not name.isascii() and not _is_text(name):
                self._note_odd_name(folder, name)
                continue
            self._enter(f"{folder}{name}/", child)

    def _list_plain(self, folder: str, opened: int, fits: Fits, matched: dict[str, None]) -> None:
        """The same for the common case, a folder of files of one pattern: as quick as can be."""
        signatures, racy, limit, look = self._survey.signatures, self._survey.racy, self._limit, os.stat
        with os.scandir(opened) as entries:
            for entry in entries:
                name = entry.name
                if not fits(name):
                    continue
                if not name.isascii() and not _is_text(name):
                    self._note_odd_name(folder, name)
                    continue
                try:
                    found = look(name, dir_fd=opened)
                except OSError as error:
                    if not isinstance(error, FileNotFoundError):
                        self._survey.problems.append(f"{self._root}/{folder}{name}: {error.strerror}")
                    continue
                if found.st_mode & 0o170000 != 0o100000:
                    continue  # no file
                path = folder + name
                changed = found.st_ctime_ns
                signatures[path] = hash((found.st_mtime_ns, found.st_size, found.st_ino, changed)) or 1
                matched[path] = None
                if changed >= limit:
                    racy.add(path)

    def _note_odd_name(self, folder: str, name: str) -> None:
        shown = os.fsencode(f"{self._root}/{folder}{name}").decode("utf-8", "backslashreplace")
        self._survey.problems.append(f"{shown}: its name is not UTF-8, and it is left alone")

    def _look(self, path: str, patterns: list[Pattern]) -> None:
        try:
            found = os.stat(f"{self._root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._survey.problems.append(f"{self._root}/{path} cannot be looked at: {error.strerror}")
            return
        if stat.S_ISREG(found.st_mode):
            self._survey.signatures[path] = signature(found)
            if found.st_ctime_ns >= self._limit:
                self._survey.racy.add(path)
            for pattern in patterns:
                self._survey.matched[pattern][path] = None


def signature(found: os.stat_result) -> int:
    """A number that changes whenever a file's content may have changed. Never 0."""
    return hash((found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)) or 1


def _fits(segment: Segment, pattern: Pattern) -> Fits:
    """Whether a name can stand for a segment."""
    holes = [at for at, (kind, _) in enumerate(segment.parts) if kind != "text"]
    free = len(holes) == 1 and (
        segment.parts[holes[0]][0] == "glob" or pattern.kinds[segment.parts[holes[0]][1]] == "str"
    )
    if not free or segment.text.startswith("."):
        regex = re.compile(segment.regex(set(), pattern.kinds))
        return lambda name: regex.fullmatch(name) is not None
    before = segment.parts[0][1] if holes[0] > 0 else ""
    after = segment.parts[-1][1] if holes[0] < len(segment.parts) - 1 else ""
    least = len(before) + len(after) + (segment.parts[holes[0]][0] == "var")

    def fits(name: str) -> bool:
        return name.endswith(after) and name.startswith(before) and len(name) >= least and not name.startswith(".")

    return fits


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
