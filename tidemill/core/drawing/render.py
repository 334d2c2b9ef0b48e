"""Render boxes and arrows as SVG and PNG, and quote labels for Mermaid."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from tidemill.core.drawing.layout import HEIGHT, Layout, NodePosition, Point, lay_out
from tidemill.core.errors import ConfigError

INK, LINE = "#0f172a", "#64748b"
_LETTER, _LEAST, _FONT = 7.4, 84.0, 13
_TIP = 8.0


class Box(msgspec.Struct, frozen=True):
    """A labelled box of a drawing; arrows refer to it by its `id`."""

    id: str
    label: str
    fill: str
    pill: bool = False


def quoted(text: str) -> str:
    """Quote a label for Mermaid."""
    return '"' + text.replace('"', "#quot;").replace("\n", " ") + '"'


def svg(rows: Sequence[Sequence[Box]], arrows: Iterable[tuple[str, str]]) -> str:
    """Draw boxes, given in reading order, and the arrows between them as SVG."""
    boxes = [box for row in rows for box in row]
    layout = _layout(boxes, arrows)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{layout.width:.0f}" height="{layout.height:.0f}" '
        f'font-family="sans-serif" font-size="{_FONT}"><defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" '
        f'markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>'
    ]
    for way in layout.ways:
        drawn.append(f'<path d="{_curve(way)}" fill="none" stroke="{LINE}" marker-end="url(#tip)"/>')
    for box in boxes:
        place = layout.places[box.id]
        drawn.append(
            f'<rect x="{place.x - place.width / 2:.1f}" y="{place.y - HEIGHT / 2:.0f}" width="{place.width:.1f}" '
            f'height="{HEIGHT:.0f}" rx="{HEIGHT / 2 if box.pill else 5:.0f}" fill="{box.fill}" stroke="{LINE}"/>'
            f'<text x="{place.x:.1f}" y="{place.y + 4.5:.1f}" text-anchor="middle" fill="{INK}">'
            f"{escape(box.label)}</text>"
        )
    return "\n".join([*drawn, "</svg>"])


def png(rows: Sequence[Sequence[Box]], arrows: Iterable[tuple[str, str]], *, scale: float = 2.0) -> bytes:
    """Draw boxes and arrows as PNG; needs `pip install tidemill[png]`."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ConfigError(
            "PNG pictures need Pillow: pip install 'tidemill[png]', or draw as SVG, which needs no extra package"
        ) from error
    boxes = [box for row in rows for box in row]
    layout = _layout(boxes, arrows)
    fine = scale * 2  # Draw at twice the size and scale down: this smooths the lines.
    image = Image.new("RGB", (_pixels(layout.width, fine), _pixels(layout.height, fine)), "white")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=_FONT * fine)
    for way in layout.ways:
        points = _smooth(way)
        pen.line([(x * fine, y * fine) for x, y in points], fill=LINE, width=round(1.2 * fine), joint="curve")
        pen.polygon([(x * fine, y * fine) for x, y in _tip(points)], fill=LINE)
    for box in boxes:
        _draw_box(pen, box, layout.places[box.id], font, fine)
    smaller = image.resize((_pixels(layout.width, scale), _pixels(layout.height, scale)), Image.Resampling.LANCZOS)
    kept = BytesIO()
    smaller.save(kept, "PNG", optimize=True)
    return kept.getvalue()


def _draw_box(pen: Any, box: Box, place: NodePosition, font: Any, fine: float) -> None:
    corners = (
        (place.x - place.width / 2) * fine,
        (place.y - HEIGHT / 2) * fine,
        (place.x + place.width / 2) * fine,
        (place.y + HEIGHT / 2) * fine,
    )
    radius = (HEIGHT / 2 if box.pill else 5) * fine
    pen.rounded_rectangle(corners, radius, fill=box.fill, outline=LINE, width=round(fine))
    pen.text((place.x * fine, place.y * fine), box.label, fill=INK, font=font, anchor="mm")


def _layout(boxes: Sequence[Box], arrows: Iterable[tuple[str, str]]) -> Layout:
    return lay_out({box.id: max(_LEAST, len(box.label) * _LETTER + 34) for box in boxes}, arrows)


def _pixels(length: float, scale: float) -> int:
    return max(1, math.ceil(length * scale))


def _curve(way: list[Point]) -> str:
    """Return the points of an arrow as an SVG path with rounded bends."""
    x, y = way[0]
    drawn = [f"M{x:.1f} {y:.1f}"]
    for (x1, y1), (x2, y2) in pairwise(way):
        if x1 == x2 or y1 == y2:
            drawn.append(f"L{x2:.1f} {y2:.1f}")
        else:
            half = (y1 + y2) / 2
            drawn.append(f"C{x1:.1f} {half:.1f} {x2:.1f} {half:.1f} {x2:.1f} {y2:.1f}")
    return " ".join(drawn)


def _smooth(way: list[Point]) -> list[Point]:
    """Return the points of an arrow with rounded bends as many short line segments."""
    points = [way[0]]
    for (x1, y1), (x2, y2) in pairwise(way):
        if x1 == x2 or y1 == y2:
            points.append((x2, y2))
            continue
        half = (y1 + y2) / 2
        for part in range(1, 17):
            t = part / 16
            a, b, c, d = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            points.append((a * x1 + b * x1 + c * x2 + d * x2, a * y1 + b * half + c * half + d * y2))
    return points


def _tip(points: list[Point]) -> list[Point]:
    """Return the three corners of an arrowhead."""
    (x1, y1), (x2, y2) = points[-2], points[-1]
    length = math.hypot(x2 - x1, y2 - y1) or 1.0
    dx, dy = (x2 - x1) / length, (y2 - y1) / length
    back, side = _TIP, _TIP * 0.45
    return [
        (x2, y2),
        (x2 - dx * back - dy * side, y2 - dy * back + dx * side),
        (x2 - dx * back + dy * side, y2 - dy * back - dx * side),
    ]
