"""How much two trees differ: the cheapest way to turn one into the other by inserting, deleting and renaming nodes.

before = Tree.of(("program", "program", [("move", "move mm=200", []), ("turn", "turn", [])]))
distance(before, after)                     # 0.3 if only a label changed within its kind

A node is a kind, a label and its children. Inserting and deleting cost 1, a label that changes within its kind `soft`,
a kind that changes `hard`. The algorithm is Zhang and Shasha's, on the trees or on their mirror images, whichever is
less work; a compiled kernel does it where there is one. `Distances` remembers pairs.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

from tidemill.monitors.decoders import kernel

Node = tuple[str, str, Sequence[Any]]

SOFT, HARD = 0.3, 1.0


class Order(NamedTuple):
    """A tree's nodes in postorder: what they are, where the subtree of each begins, and where subproblems begin."""

    kinds: array[int]
    labels: array[int]
    first: array[int]
    roots: array[int]
    work: int
    """How many nodes its subproblems have together."""


class Tree:
    """A tree, ready to be compared."""

    def __init__(self, root: Node | None) -> None:
        self._root = root

    @staticmethod
    def of(root: Node | None) -> Tree:
        return Tree(root)

    @property
    def size(self) -> int:
        return len(self.left.kinds)

    @cached_property
    def left(self) -> Order:
        return _order(self._root, mirrored=False)

    @cached_property
    def right(self) -> Order:
        return _order(self._root, mirrored=True)

    @cached_property
    def digest(self) -> bytes:
        """The same for equal trees."""
        order = self.left
        return blake2b(order.labels.tobytes() + order.kinds.tobytes() + order.first.tobytes(), digest_size=16).digest()


def distance(one: Tree, other: Tree, *, soft: float = SOFT, hard: float = HARD) -> float:
    """The cost of the cheapest way from one tree to the other."""
    if not one.size or not other.size:
        return float(one.size + other.size)
    left = one.left.work * other.left.work
    right = one.right.work * other.right.work
    pair = (one.left, other.left) if left <= right else (one.right, other.right)
    return (_compiled or plain_distance)(*pair, soft, hard)


class Distances:
    """Distances with a memory for pairs that were compared before; what was used longest ago is forgotten first."""

    def __init__(self, *, most: int = 10_000, soft: float = SOFT, hard: float = HARD) -> None:
        self._most, self._soft, self._hard = most, soft, hard
        self._known: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def __call__(self, one: Tree, other: Tree) -> float:
        pair = (one.digest, other.digest) if one.digest <= other.digest else (other.digest, one.digest)
        found = self._known.get(pair)
        if found is None:
            found = 0.0 if pair[0] == pair[1] else distance(one, other, soft=self._soft, hard=self._hard)
            self._known[pair] = found
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(pair)
        return found


def plain_distance(one: Order, other: Order, soft: float, hard: float) -> float:
    """The same without a compiler."""
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


def compiled_distance(found: Callable[..., float]) -> Callable[[Order, Order, float, float], float]:
    """The compiled kernel as a function of two orders."""

    def measure(one: Order, other: Order, soft: float, hard: float) -> float:
        result = found(*_addresses(one), *_addresses(other), soft, hard)
        if result < 0:
            raise MemoryError(f"no memory to compare trees of {len(one.kinds)} and {len(other.kinds)} nodes")
        return result

    return measure


def _addresses(order: Order) -> tuple[int, ...]:
    kinds, labels, first, roots, _ = order
    return (
        len(kinds), len(roots), kinds.buffer_info()[0], labels.buffer_info()[0], first.buffer_info()[0],
        roots.buffer_info()[0],
    )  # fmt: skip


def _order(root: Node | None, *, mirrored: bool) -> Order:
    kinds, labels, first = array("q"), array("q"), array("i")
    if root is not None:
        # Without recursion, for programs may be hundreds of blocks deep: a node is left when its children are done.
        stack: list[tuple[Node, int, int]] = [(root, 0, 0)]
        while stack:
            node, child, begin = stack.pop()
            children = node[2]
            if child < len(children):
                stack.append((node, child + 1, begin))
                stack.append((children[-1 - child if mirrored else child], 0, len(kinds)))
                continue
            kinds.append(_number(node[0]))
            labels.append(_number(f"{node[0]}\x00{node[1]}"))
            first.append(begin)
    last = {begin: index for index, begin in enumerate(first)}
    roots = array("i", sorted(last.values()))
    return Order(kinds, labels, first, roots, sum(index - first[index] + 1 for index in roots))


@lru_cache(maxsize=100_000)
def _number(text: str) -> int:
    """A text as a number, the same everywhere: so many bits that two texts do not share one."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big", signed=True)


_found = kernel.load()
_compiled = None if _found is None else compiled_distance(_found)
