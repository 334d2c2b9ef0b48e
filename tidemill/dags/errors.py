"""Errors of dags. An error in a declaration has its place, and for a file also its line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.core.did_you_mean import did_you_mean
from tidemill.core.errors import ConfigError, ConflictError, TidemillError
from tidemill.core.expressions.paths import Path, format_path


class DagError(ConfigError):
    """The declaration of a dag is invalid. `place` is the path to the problem, such as `nodes[3].deps[0]`."""

    def __init__(
        self, place: Path, problem: str, *, dag: str = "", file: str | None = None, line: int | None = None
    ) -> None:
        self.place = place
        self.problem = problem
        self.file = file
        self.line = line
        where = [f"{file}:{line}" if line else file] if file else [f"dag {dag!r}"] if dag else []
        super().__init__(": ".join([*where, *([format_path(place)] if place else []), problem]))

    def within(self, *outer: str | int, dag: str = "") -> DagError:
        """Return the same error with `outer` in front of its place."""
        moved = DagError((*outer, *self.place), self.problem, dag=dag, file=self.file, line=self.line)
        moved.__cause__ = self.__cause__
        return moved


class DagRunError(TidemillError):
    """A run of a dag did not succeed. `nodes` are the nodes that caused it."""

    def __init__(self, message: str, *, nodes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.nodes = tuple(nodes)


class InputRefusedError(ConflictError):
    """An answer to an input node is not accepted."""


def no_node(dag: str, name: str, known: Iterable[str]) -> str:
    """What to say of a node that a dag does not have."""
    shown = [each for each in known if "/" not in each]
    return f"there is no node {name!r} in dag {dag!r}; its nodes are {', '.join(shown[:20])}{did_you_mean(name, known)}"
