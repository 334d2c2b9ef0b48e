"""Boxes and arrows, as Mermaid text and as SVG: what all drawings of graphs are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

import msgspec

_WIDTH, _HEIGHT, _ACROSS, _DOWN = 180, 36, 210, 80


class Box(msgspec.Struct, frozen=True):
    """Something in a picture; arrows find it by its `id`."""

    id: str
    label: str
    fill: str
    pill: bool = False


def quoted(text: str) -> str:
    """A label as Mermaid takes it."""
    return '"' + text.replace('"', "#quot;").replace("\n", " ") + '"'


def svg(rows: Sequence[Sequence[Box]], arrows: Iterable[tuple[str, str]]) -> str:
    """An SVG picture of boxes in rows from top to bottom, and of the arrows between them."""
    places = {box.id: (x * _ACROSS + 20, y * _DOWN + 20) for y, row in enumerate(rows) for x, box in enumerate(row)}
    width, height = max(map(len, rows), default=0) * _ACROSS + 20, len(rows) * _DOWN + 20
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="13"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        'orient="auto"><path d="M0 0 8 4 0 8z" fill="#64748b"/></marker></defs>'
    ]
    for source, target in arrows:
        (x1, y1), (x2, y2) = places[source], places[target]
        out, into = (y1 + _HEIGHT, y2) if y2 > y1 else (y1, y2 + _HEIGHT)
        drawn.append(
            f'<line x1="{x1 + _WIDTH // 2}" y1="{out}" x2="{x2 + _WIDTH // 2}" y2="{into}" stroke="#64748b" '
            'marker-end="url(#tip)"/>'
        )
    for box in (box for row in rows for box in row):
        x, y = places[box.id]
        drawn.append(
            f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="{_HEIGHT // 2 if box.pill else 4}" '
            f'fill="{box.fill}" stroke="#64748b"/>'
            f'<text x="{x + _WIDTH // 2}" y="{y + _HEIGHT // 2 + 5}" text-anchor="middle">{escape(box.label)}</text>'
        )
    return "\n".join([*drawn, "</svg>"])
