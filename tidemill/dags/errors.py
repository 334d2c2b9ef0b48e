"""What goes wrong in a dag before it runs: always with the place, and with the line where there is a file."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.core.errors import ConfigError, ConflictError, TidemillError
from tidemill.core.paths import Path, format_path


class DagError(ConfigError):
    """A dag that cannot work as declared. `place` is the path to the trouble, such as `nodes[3].deps[0]`."""

    def __init__(
        self, place: Path, problem: str, *, dag: str = "", file: str | None = None, line: int | None = None
    ) -> None:
        self.place = place
        self.problem = problem
        self.dag = dag
        self.file = file
        self.line = line
        where = [f"{file}:{line}" if line else file] if file else [f"dag {dag!r}"] if dag else []
        super().__init__(": ".join([*where, *([format_path(place)] if place else []), problem]))

    def within(self, *outer: str | int, dag: str = "") -> DagError:
        """The same trouble, seen from further out."""
        told = DagError((*outer, *self.place), self.problem, dag=dag, file=self.file, line=self.line)
        told.__cause__ = self.__cause__
        return told


class DagRunError(TidemillError):
    """A run of a dag did not succeed. `nodes` are those that are to blame."""

    def __init__(self, message: str, *, nodes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nodes = tuple(nodes)


class InputRefusedError(ConflictError):
    """An answer to an input node does not count."""
