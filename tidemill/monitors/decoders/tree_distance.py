"""How much two trees differ: the cheapest way to turn one into the other by inserting, deleting and renaming nodes.

before = Tree.of(("program", "program", [("move", "move mm=200", []), ("turn", "turn", [])]))
distance(before, after)                     # 0.3 if only a label changed within its kind

A node is a kind, a label and its children. Inserting and deleting cost 1, a label that changes within its kind `soft`,
a kind that changes `hard`. The algorithm is Zhang and Shasha's, on the trees or on their mirror images, whichever is
less work. `Distances` remembers pairs. An application that compares many large trees passes a kernel of its own.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

Node = tuple[str, str, Sequence[Any]]

SOFT, HARD = 0.3, 1.0


class PostOrder(NamedTuple):
    """A tree's nodes in postorder: what they are, where the subtree of each begins, and where subproblems begin."""

    kinds: array[int]
    labels: array[int]
    first: array[int]
    roots: array[int]
    work: int
    """How many nodes its subproblems have together."""


Kernel = Callable[[PostOrder, PostOrder, float, float], float]
"""Computes the distance of two trees in postorder, with the costs `soft` and `hard`."""


class Tree:
    """A tree, ready to be compared."""

    def __init__(self, nodes: Sequence[tuple[str, str, int]] = ()) -> None:
        """Kind, label and the place of the parent of each node: parents first, their children from left to right."""
        self._names = [_numbers(kind, label) for kind, label, _ in nodes]
        self._sizes, self._depths = [1] * len(nodes), [0] * len(nodes)
        for place in range(1, len(nodes)):
            self._depths[place] = self._depths[nodes[place][2]] + 1
        for place in range(len(nodes) - 1, 0, -1):
            self._sizes[nodes[place][2]] += self._sizes[place]

    @staticmethod
    def of(root: Node | None) -> Tree:
        """A tree from a node, whose children are nodes."""
        nodes: list[tuple[str, str, int]] = []
        waiting = [] if root is None else [(root, -1)]
        while waiting:
            (kind, label, children), parent = waiting.pop()
            waiting += [(child, len(nodes)) for child in reversed(children)]
            nodes.append((kind, label, parent))
        return Tree(nodes)

    @property
    def size(self) -> int:
        return len(self._names)

    @cached_property
    def left(self) -> PostOrder:
        """The nodes after their children, these from left to right."""
        order = [0] * self.size
        for place, (size, depth) in enumerate(zip(self._sizes, self._depths, strict=True)):
            order[place + size - 1 - depth] = place
        return self._in_order(order)

    @cached_property
    def right(self) -> PostOrder:
        """The nodes after their children, these from right to left: parents first, read backwards."""
        return self._in_order(range(self.size - 1, -1, -1))

    @cached_property
    def digest(self) -> bytes:
        """The same for equal trees."""
        order = self.left
        return blake2b(order.labels.tobytes() + order.kinds.tobytes() + order.first.tobytes(), digest_size=16).digest()

    def _in_order(self, order: Sequence[int]) -> PostOrder:
        names, sizes = self._names, self._sizes
        first = [index + 1 - sizes[place] for index, place in enumerate(order)]
        last = {begin: index for index, begin in enumerate(first)}
        roots = sorted(last.values())
        return PostOrder(
            kinds=array("q", [names[place][0] for place in order]),
            labels=array("q", [names[place][1] for place in order]),
            first=array("i", first),
            roots=array("i", roots),
            work=sum(index + 1 - first[index] for index in roots),
        )


def plain_distance(one: PostOrder, other: PostOrder, soft: float, hard: float) -> float:
    """The kernel in plain Python."""
    kinds1, labels1, first1 = one.kinds.tolist(), one.labels.tolist(), one.first.tolist()
    kinds2, labels2, first2 = other.kinds.tolist(), other.labels.tolist(), other.first.tolist()
    trees = [[0.0] * len(kinds2) for _ in kinds1]
    for i in one.roots:
        li = first1[i]
        for j in other.roots:
            lj = first2[j]
            above = [float(y) for y in range(j - lj + 2)]
            forest = [above]
            span = slice(lj, j + 1)
            targets = list(zip(range(lj, j + 1), labels2[span], kinds2[span], first2[span], strict=True))
            for p in range(li, i + 1):
                before = above[0] + 1.0
                row = [before]
                known, split, whole = trees[p], forest[first1[p] - li], first1[p] == li
                label, kind = labels1[p], kinds1[p]
                for y, (q, label2, kind2, fq) in enumerate(targets):
                    up = above[y + 1]
                    best = (up if up < before else before) + 1.0
                    if whole and fq == lj:
                        both = above[y] + (0.0 if label == label2 else soft if kind == kind2 else hard)
                        before = known[q] = both if both < best else best
                    else:
                        both = split[fq - lj] + known[q]
                        before = both if both < best else best
                    row.append(before)
                forest.append(row)
                above = row
    return trees[-1][-1]


def distance(
    one: Tree, other: Tree, *, soft: float = SOFT, hard: float = HARD, kernel: Kernel = plain_distance
) -> float:
    """The cost of the cheapest way from one tree to the other."""
    if not one.size or not other.size:
        return float(one.size + other.size)
    left = one.left.work * other.left.work
    right = one.right.work * other.right.work
    pair = (one.left, other.left) if left <= right else (one.right, other.right)
    return kernel(*pair, soft, hard)


class Distances:
    """Distances with a memory for pairs that were compared before; what was used longest ago is forgotten first."""

    def __init__(
        self, *, most: int = 10_000, soft: float = SOFT, hard: float = HARD, kernel: Kernel = plain_distance
    ) -> None:
        self._most, self._soft, self._hard, self._kernel = most, soft, hard, kernel
        self._known: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, one: Tree, other: Tree) -> float:
        pair = (one.digest, other.digest) if one.digest <= other.digest else (other.digest, one.digest)
        found = self._known.get(pair)
        if found is None:
            found = 0.0 if pair[0] == pair[1] else self._distance(one, other)
            self._known[pair] = found
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(pair)
        return found

    def _distance(self, one: Tree, other: Tree) -> float:
        return distance(one, other, soft=self._soft, hard=self._hard, kernel=self._kernel)


@lru_cache(maxsize=100_000)
def _numbers(kind: str, label: str) -> tuple[int, int]:
    """A kind, and a label of that kind, as numbers."""
    return _number(kind), _number(f"{kind}\x00{label}")


def _number(text: str) -> int:
    """A text as a number, the same everywhere: with enough bits that two texts do not collide."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)
