"""Layered layout of a graph: boxes from top to bottom, few crossing arrows, no overlaps. Pure.

An arrow back to an earlier layer is reversed for the layout. An arrow across several layers gets a lane in each layer
between, so that it runs between the boxes and not through them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

HEIGHT, GAP, DOWN, MARGIN = 36.0, 28.0, 46.0, 24.0
_LANE = 16.0

Point = tuple[float, float]


class NodePosition(msgspec.Struct, frozen=True):
    """The centre and the size of a box."""

    x: float
    y: float
    width: float
    height: float


class Layout(msgspec.Struct, frozen=True):
    """The size of the drawing, the position of each box by id, and the points of each arrow in the order given."""

    width: float
    height: float
    places: dict[str, NodePosition]
    ways: list[list[Point]]


class _Spot:
    """A box, or the lane of an arrow through a layer."""

    def __init__(self, layer: int, width: float) -> None:
        self.layer, self.width = layer, width
        self.x = 0.0
        self.above: list[_Spot] = []
        self.below: list[_Spot] = []


def lay_out(widths: dict[str, float], arrows: Iterable[tuple[str, str]]) -> Layout:
    """Compute positions for boxes of these widths; their order is the reading order."""
    edges = list(arrows)
    backward = _backward(list(widths), edges)
    layers = _layers(list(widths), [(b, a) if i in backward else (a, b) for i, (a, b) in enumerate(edges)])
    spots = {name: _Spot(layers[name], width) for name, width in widths.items()}
    rows: list[list[_Spot]] = [[] for _ in range(max(layers.values(), default=-1) + 1)]
    for name in widths:
        rows[layers[name]].append(spots[name])
    chains: list[list[_Spot]] = []
    for index, (source, target) in enumerate(edges):
        upper, lower = (target, source) if index in backward else (source, target)
        chain = [spots[upper]]
        for layer in range(layers[upper] + 1, layers[lower]):
            chain.append(_Spot(layer, _LANE))
            rows[layer].append(chain[-1])
        chain.append(spots[lower])
        for one, other in pairwise(chain):
            one.below.append(other)
            other.above.append(one)
        chains.append(chain if index not in backward else chain[::-1])
    _order(rows)
    _spread(rows)
    return _drawn(rows, spots, edges, chains)


def _backward(names: list[str], edges: list[tuple[str, str]]) -> set[int]:
    """Find the arrows that close a cycle, by a depth-first search in reading order."""
    ahead: dict[str, list[tuple[int, str]]] = {}
    for index, (source, target) in enumerate(edges):
        ahead.setdefault(source, []).append((index, target))
    found: set[int] = set()
    done: dict[str, bool] = {}
    for first in names:
        stack = [] if first in done else [(first, iter(ahead.get(first, ())))]
        if stack:
            done[first] = False
        while stack:
            name, left = stack[-1]
            step = next(left, None)
            if step is None:
                done[name] = True
                stack.pop()
            elif step[1] not in done:
                done[step[1]] = False
                stack.append((step[1], iter(ahead.get(step[1], ()))))
            elif not done[step[1]]:
                found.add(step[0])
    return found


def _layers(names: list[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """Compute the length of the longest path to each box; the arrows must have no cycle."""
    ahead: dict[str, list[str]] = {}
    waiting = dict.fromkeys(names, 0)
    for source, target in edges:
        if source != target:
            ahead.setdefault(source, []).append(target)
            waiting[target] += 1
    layers = dict.fromkeys(names, 0)
    ready = [name for name in names if not waiting[name]]
    for name in ready:
        for other in ahead.get(name, ()):
            layers[other] = max(layers[other], layers[name] + 1)
            waiting[other] -= 1
            if not waiting[other]:
                ready.append(other)
    return layers


def _order(rows: list[list[_Spot]]) -> None:
    """Sort each row by the mean position of its neighbours above or below, in alternating passes."""
    for turn in range(8):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            middle: dict[_Spot, float] = {}
            for index, spot in enumerate(row):
                joined = spot.above if turn % 2 == 0 else spot.below
                middle[spot] = sum(other.x for other in joined) / len(joined) if joined else float(index)
            row.sort(key=middle.__getitem__)
            for index, spot in enumerate(row):
                spot.x = float(index)


def _spread(rows: list[list[_Spot]]) -> None:
    """Move each spot towards the mean position of the spots it is connected to, without overlaps."""
    for row in rows:
        _pack(row, [0.0] * len(row))
    for turn in range(80):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            wanted: list[float] = []
            for spot in row:
                pulls = [(other.x, _pull(spot, other)) for other in (*spot.above, *spot.below)]
                force = sum(weight for _, weight in pulls)
                wanted.append(sum(x * weight for x, weight in pulls) / force if pulls else spot.x)
            _pack(row, wanted)
    for row in rows[::-1]:  # The last pass puts each box directly above its successors.
        _pack(row, [sum(other.x for other in spot.below) / len(spot.below) if spot.below else spot.x for spot in row])


def _pull(spot: _Spot, other: _Spot) -> float:
    """Return the weight of the connection between two spots; lanes weigh more, so that long arrows are straight."""
    return 8.0 if spot.width == _LANE == other.width else 1.0


def _pack(row: list[_Spot], wanted: Sequence[float]) -> None:
    """Place a row near the wanted positions without overlaps: the mean of packing from the left and from the right."""
    left: list[float] = []
    right: list[float] = []
    for index, spot in enumerate(row):
        least = left[-1] + (row[index - 1].width + spot.width) / 2 + GAP if left else wanted[index]
        left.append(max(least, wanted[index]))
    for index in range(len(row) - 1, -1, -1):
        spot = row[index]
        most = right[-1] - (row[index + 1].width + spot.width) / 2 - GAP if right else wanted[index]
        right.append(min(most, wanted[index]))
    for spot, low, high in zip(row, left, reversed(right), strict=True):
        spot.x = (low + high) / 2


def _drawn(
    rows: list[list[_Spot]], spots: dict[str, _Spot], edges: list[tuple[str, str]], chains: list[list[_Spot]]
) -> Layout:
    everything = [spot for row in rows for spot in row]
    shift = MARGIN - min((spot.x - spot.width / 2 for spot in everything), default=0.0)
    width = max((spot.x + spot.width / 2 for spot in everything), default=0.0) + shift + MARGIN
    height = len(rows) * (HEIGHT + DOWN) - (DOWN if rows else 0) + 2 * MARGIN

    def middle(layer: int) -> float:
        return MARGIN + layer * (HEIGHT + DOWN) + HEIGHT / 2

    places = {
        name: NodePosition(spot.x + shift, middle(spot.layer), spot.width, HEIGHT) for name, spot in spots.items()
    }
    ways: list[list[Point]] = []
    ends = _ends(chains)
    for index, chain in enumerate(chains):
        if edges[index][0] == edges[index][1]:
            place = places[edges[index][0]]
            side = place.x + place.width / 2
            far = side + GAP * 0.6
            ways.append([(side, place.y - 8), (far, place.y - 8), (far, place.y + 8), (side, place.y + 8)])
            width = max(width, far + MARGIN)
            continue
        down = chain[-1].layer > chain[0].layer
        edge = HEIGHT / 2 if down else -HEIGHT / 2
        points: list[Point] = [(chain[0].x + shift + ends[index, 0], middle(chain[0].layer) + edge)]
        for spot in chain[1:-1]:
            sides = (-HEIGHT / 2, HEIGHT / 2) if down else (HEIGHT / 2, -HEIGHT / 2)
            points += [(spot.x + shift, middle(spot.layer) + side) for side in sides]
        points.append((chain[-1].x + shift + ends[index, -1], middle(chain[-1].layer) - edge))
        ways.append(_straight(points))
    return Layout(width, height, places, ways)


def _ends(chains: list[list[_Spot]]) -> dict[tuple[int, int], float]:
    """Compute where each arrow starts (0) and ends (-1) along the edge of its box, so that no two share a point."""
    groups: dict[tuple[_Spot, bool], list[tuple[float, int, int]]] = {}
    for index, chain in enumerate(chains):
        for end, other in ((0, chain[1]), (-1, chain[-2])):
            groups.setdefault((chain[end], other.layer > chain[end].layer), []).append((other.x, index, end))
    found: dict[tuple[int, int], float] = {}
    for (box, _), ends in groups.items():
        room = min(18.0, (box.width - 30) / len(ends))
        for order, (_, index, end) in enumerate(sorted(ends)):
            found[index, end] = (order - (len(ends) - 1) / 2) * room
    return found


def _straight(points: list[Point]) -> list[Point]:
    """Replace an almost vertical arrow by a vertical one."""
    if len(points) == 2 and abs(points[0][0] - points[1][0]) < 10:
        x = (points[0][0] + points[1][0]) / 2
        return [(x, points[0][1]), (x, points[1][1])]
    return points
