"""A walk over folders that reads only those that patterns need, each once."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from tidemill.pipelines.definition.pattern import Pattern, Segment
from tidemill.pipelines.stores.base import Scan

#: A file changed this shortly before it is read may change again unnoticed: clocks are coarse.
RACY_NS = 50_000_000

Identity = tuple[int, int]  # device and inode of a folder


class Known(Protocol):
    """Signatures that are known already."""

    def get(self, path: str, /) -> int | None: ...


class _Node(msgspec.Struct, eq=False):
    """A node in the tree of patterns: what may follow here."""

    is_deep: bool = False  # also applies to all folders below
    deep: _Node | None = None
    literal: dict[str, _Node] = {}
    open: list[tuple[Fits, _Node, str]] = []
    files: list[tuple[Fits, Pattern]] = []
    names: dict[str, list[Pattern]] = {}

    def child(self, segment: Segment, pattern: Pattern) -> _Node:
        if segment.is_deep:
            self.deep = self.deep or _Node(is_deep=True)
            return self.deep
        if segment.is_literal:
            return self.literal.setdefault(segment.text, _Node())
        for _, node, text in self.open:
            if text == segment.text:
                return node
        node = _Node()
        self.open.append((Fits(segment, pattern), node, segment.text))
        return node

    @property
    def is_fixed(self) -> bool:
        """Whether all children are known by name, so that the folder need not be listed."""
        return not (self.files or self.open or self.is_deep)


class _Folder:
    """What several nodes look for in one folder."""

    def __init__(self, nodes: Sequence[_Node], scan: Scan) -> None:
        self.targets = [(fits, scan.matched[pattern]) for node in nodes for fits, pattern in node.files]
        self.named: dict[str, list[dict[str, None]]] = {}
        for node in nodes:
            for name, patterns in node.names.items():
                self.named.setdefault(name, []).extend(scan.matched[pattern] for pattern in patterns)
        self._nodes = nodes
        self._deep = [node for node in nodes if node.is_deep]
        self.has_folders = bool(self._deep) or any(node.open or node.literal for node in nodes)

    @property
    def is_plain(self) -> bool:
        """Whether it only has files of one pattern."""
        return len(self.targets) == 1 and not self.named and not self.has_folders

    def inner(self, name: str) -> list[_Node]:
        """What to look for in a subfolder of this name."""
        found = [node.literal[name] for node in self._nodes if name in node.literal]
        found += [child for node in self._nodes for fits, child, _ in node.open if fits(name)]
        return found if name.startswith(".") else [*found, *self._deep]

    def hits(self, name: str) -> list[dict[str, None]]:
        """The patterns that a file of this name matches."""
        found = [matched for fits, matched in self.targets if fits(name)]
        return found + self.named[name] if name in self.named else found


class Walk:
    """One walk for many patterns."""

    def __init__(self, root: str, patterns: Sequence[Pattern], known: Known | None = None, *, skew_ns: int = 0) -> None:
        """
        known      signatures of files that need not be read again
        skew_ns    how far the file system's clock is ahead of this host's
        """
        self._root = root
        self._known = known
        self._limit = time.time_ns() + skew_ns - RACY_NS
        self._scan = Scan({}, {pattern: {} for pattern in patterns}, [], set())
        self._skipped: set[str] = set()
        self._tree = _Node()
        for pattern in self._scan.matched:
            node = self._tree
            for segment in pattern.segments[:-1]:
                node = node.child(segment, pattern)
            last = pattern.segments[-1]
            if last.is_literal:
                node.names.setdefault(last.text, []).append(pattern)
            else:
                node.files.append((Fits(last, pattern), pattern))

    def run(self) -> Scan:
        self._enter("", [self._tree], ())
        return self._scan

    def run_in(self, changed: Iterable[str], known: Iterable[str]) -> Scan:
        """Scan only these folders, and those that are not among the `known` ones."""
        self._skipped = set(known)
        self._enter("", [self._tree], ())
        for folder in changed:
            nodes, above, path = _with_deep([self._tree]), (), ""
            for name in folder.split("/")[:-1]:
                above = (*above, *self._identity(path))
                nodes = _with_deep(_Folder(nodes, self._scan).inner(name))
                path = f"{path}{name}/"
            self._skipped.discard(folder)
            self._enter(folder, nodes, above)
        return self._scan

    def _time(self, folder: str) -> int:
        """When a folder last changed; 0 if it does not exist."""
        try:
            return os.stat(f"{self._root}/{folder}").st_mtime_ns
        except OSError:
            return 0

    def _identity(self, folder: str) -> list[Identity]:
        try:
            found = os.stat(f"{self._root}/{folder}")
        except OSError:
            return []
        return [(found.st_dev, found.st_ino)]

    def _enter(self, folder: str, found: Iterable[_Node], above: tuple[Identity, ...]) -> None:
        """Scan a folder. `above` are its parent folders: a cycle of symlinks would lead back to one."""
        if folder in self._skipped:
            return
        nodes = _with_deep(found)
        if all(node.is_fixed for node in nodes):
            if any(node.names for node in nodes):
                self._scan.folders[folder] = self._time(folder)
            for node in nodes:
                for name, inner in node.literal.items():
                    self._enter(f"{folder}{name}/", [inner], above)
                for name, patterns in node.names.items():
                    self._add_file(folder + name, patterns)
            return
        try:
            self._list(folder, _Folder(nodes, self._scan), above)
        except (FileNotFoundError, NotADirectoryError):
            self._scan.folders[folder] = 0  # It may be created later.
        except OSError as error:
            self._note_unseen(folder, error)

    def _note_unseen(self, path: str, error: OSError) -> None:
        self._scan.problems.append(f"{self._root}/{path} cannot be read: {error.strerror}")
        self._scan.blind.append(path)

    def _list(self, folder: str, wanted: _Folder, above: tuple[Identity, ...]) -> None:
        scan = self._scan
        opened = os.open(f"{self._root}/{folder}", os.O_RDONLY | os.O_DIRECTORY)
        inner: list[tuple[str, list[_Node]]] = []
        try:
            own = os.fstat(opened)
            identity = (own.st_dev, own.st_ino)
            if identity in above:
                scan.problems.append(f"{self._root}/{folder} is a symlink cycle: skipped")
                return
            scan.folders[folder] = own.st_mtime_ns
            if wanted.is_plain:
                self._take_plain(folder, opened, *wanted.targets[0])
                return
            with os.scandir(opened) as entries:
                for entry in entries:
                    if wanted.has_folders and _is_folder(entry):
                        if nodes := wanted.inner(entry.name):
                            inner.append((entry.name, nodes))
                        continue
                    if hits := wanted.hits(entry.name):
                        self._take(folder, entry.name, opened, hits)
        finally:
            os.close(opened)
        for name, nodes in inner:
            if name.isascii() or self._is_text(folder, name):
                self._enter(f"{folder}{name}/", nodes, (*above, identity))

    def _take(self, folder: str, name: str, opened: int, hits: list[dict[str, None]]) -> None:
        """Record a file of an open folder."""
        if not name.isascii() and not self._is_text(folder, name):
            return
        scan, path = self._scan, folder + name
        if self._known is not None and (there := self._known.get(path)):
            scan.signatures[path] = there
        else:
            try:
                found = os.stat(name, dir_fd=opened)
            except FileNotFoundError:
                return
            except OSError as error:
                self._note_unseen(path, error)
                return
            if not stat.S_ISREG(found.st_mode):
                return
            scan.signatures[path] = signature(found)
            if found.st_ctime_ns >= self._limit:
                scan.racy.add(path)
        for matched in hits:
            matched[path] = None

    def _take_plain(self, folder: str, opened: int, fits: Fits, matched: dict[str, None]) -> None:
        """The same for the common case, a folder of files of one pattern: a fast path."""
        scan, limit, read_stat, paths, found = self._scan, self._limit, os.stat, [], []
        names = fits.among(os.listdir(opened))
        if self._known is not None:
            names = self._take_known(folder, names, self._known, matched)
        for name in names:
            try:
                there = read_stat(name, dir_fd=opened)
            except FileNotFoundError:
                continue
            except OSError as error:
                self._note_unseen(folder + name, error)
                continue
            if there.st_mode & 0o170000 != 0o100000:
                continue  # not a file
            if not name.isascii() and not self._is_text(folder, name):
                continue
            changed = there.st_ctime_ns
            if changed >= limit:
                scan.racy.add(folder + name)
            paths.append(folder + name)
            found.append(hash((there.st_mtime_ns, there.st_size, there.st_ino, changed)) or 1)
        scan.signatures.update(zip(paths, found, strict=True))
        matched.update(dict.fromkeys(paths))

    def _take_known(self, folder: str, names: list[str], known: Known, matched: dict[str, None]) -> list[str]:
        """Record files with known signatures; returns the names of the others."""
        paths = [folder + name for name in names]
        found = [known.get(path) for path in paths]
        pairs = {path: there for path, there in zip(paths, found, strict=True) if there}
        self._scan.signatures.update(pairs)
        matched.update(dict.fromkeys(pairs))
        if len(pairs) == len(names):
            return []
        return [name for name, there in zip(names, found, strict=True) if not there]

    def _is_text(self, folder: str, name: str) -> bool:
        """Whether a name is UTF-8; others are reported."""
        try:
            name.encode()
        except UnicodeEncodeError:
            shown = os.fsencode(f"{self._root}/{folder}{name}").decode("utf-8", "backslashreplace")
            self._scan.problems.append(f"{shown}: its name is not UTF-8: skipped")
            return False
        return True

    def _add_file(self, path: str, patterns: list[Pattern]) -> None:
        """Record a file by its path."""
        try:
            found = os.stat(f"{self._root}/{path}")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._note_unseen(path, error)
            return
        if stat.S_ISREG(found.st_mode):
            self._scan.signatures[path] = signature(found)
            if found.st_ctime_ns >= self._limit:
                self._scan.racy.add(path)
            for pattern in patterns:
                self._scan.matched[pattern][path] = None


def _with_deep(found: Iterable[_Node]) -> list[_Node]:
    """These nodes, and those reached through a `**` that matches no folder."""
    nodes: list[_Node] = []
    for node in found:
        while node is not None and node not in nodes:
            nodes.append(node)
            node = node.deep
    return nodes


def signature(found: os.stat_result) -> int:
    """A number that changes whenever a file's content may have changed. Never 0."""
    return hash((found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns)) or 1


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # such as a symlink cycle: reported when it is read as a file


class Fits:
    """Whether a name matches a segment of a pattern."""

    def __init__(self, segment: Segment, pattern: Pattern) -> None:
        holes = [at for at, (kind, _) in enumerate(segment.parts) if kind != "text"]
        kind, name = segment.parts[holes[0]]
        is_free = len(holes) == 1 and (kind == "glob" or pattern.kinds[name] == "str")
        self._before = segment.parts[0][1] if holes[0] > 0 else ""
        self._after = segment.parts[-1][1] if holes[0] < len(segment.parts) - 1 else ""
        self._least = len(self._before) + len(self._after) + (kind == "var")
        # A prefix and a suffix around any text need no regular expression.
        is_plain = is_free and not segment.text.startswith(".")
        self._regex = None if is_plain else re.compile(segment.regex(set(), pattern.kinds))

    def __call__(self, name: str) -> bool:
        return bool(self.among([name]))

    def among(self, names: Iterable[str]) -> list[str]:
        """The names among these that match."""
        if self._regex is not None:
            return [name for name in names if self._regex.fullmatch(name)]
        before, after, least = self._before, self._after, self._least
        return [
            name
            for name in names
            if name.endswith(after) and name.startswith(before) and len(name) >= least and name[0] != "."
        ]
