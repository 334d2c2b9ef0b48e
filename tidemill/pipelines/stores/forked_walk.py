"""A walk over folders in a child process, while this process loads what it needs to compare the result with."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import msgspec

from tidemill.pipelines.definition.pattern import Pattern
from tidemill.pipelines.stores.base import Scan
from tidemill.pipelines.stores.folder_walk import Walk


def can_fork() -> bool:
    """Whether a child process is safe here: of several threads only one would be in it."""
    return sys.platform == "linux" and threading.active_count() == 1


class _Seen(msgspec.Struct, array_like=True):
    """What the child sends: signatures by path, the paths of each pattern, and problems."""

    signatures: dict[str, int]
    matched: list[list[str]]
    problems: list[str]


class ForkedWalk:
    """One walk for many patterns, in a child process that begins at once."""

    def __init__(self, root: str, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._reads, writes = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                _walk(root, patterns, writes)
            finally:
                os._exit(0)  # A walk that failed has written nothing.
        os.close(writes)

    def result(self) -> Scan | None:
        """Wait for the signatures, paths and problems that were found; None if the walk failed."""
        with open(self._reads, "rb") as reads:
            found = reads.read()
        os.waitpid(self._child, 0)
        try:
            seen = msgspec.msgpack.decode(found, type=_Seen)
        except msgspec.DecodeError:
            return None
        matched = {pattern: dict.fromkeys(paths) for pattern, paths in zip(self._patterns, seen.matched, strict=True)}
        return Scan(seen.signatures, matched, seen.problems, set())


def _walk(root: str, patterns: Sequence[Pattern], writes: int) -> None:
    scan = Walk(root, patterns).run()
    with open(writes, "wb") as opened:
        seen = _Seen(scan.signatures, [list(scan.matched[each]) for each in patterns], scan.problems)
        opened.write(msgspec.msgpack.encode(seen))
