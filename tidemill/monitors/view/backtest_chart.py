"""A backtest as a picture: one line per entity, a bar for each alert that lasts, a mark for each that does not."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.sax.saxutils import escape

from tidemill.monitors.runner.backtest import BacktestReport

COLOURS = ("#dc2626", "#2563eb", "#d97706", "#7c3aed", "#059669", "#be185d")
INK, RULE = "#0f172a", "#cbd5e1"
WIDTH, LEFT, ROW, TOP = 1000, 140, 18, 58
MOST_ROWS = 200


def svg(report: BacktestReport) -> str:
    """The picture of a report as SVG."""
    since, until = report.since, max(report.until, report.since + 1)
    triggers = sorted({alert.trigger for alert in report.alerts})
    colours = {name: COLOURS[index % len(COLOURS)] for index, name in enumerate(triggers)}
    everybody = sorted({alert.entity for alert in report.alerts})
    shown = everybody[:MOST_ROWS]
    height = TOP + ROW * max(1, len(shown)) + 34

    def x(moment: float) -> float:
        return LEFT + (WIDTH - LEFT - 20) * (min(max(moment, since), until) - since) / (until - since)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" '
        f'font-size="12" fill="{INK}"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="20" font-size="14">{escape(report.monitor)}: {len(report.alerts)} alerts of '
        f"{report.entities} entities, {report.events} events</text>",
    ]
    at = 12.0
    for name in triggers:
        parts.append(f'<rect x="{at}" y="31" width="10" height="10" fill="{colours[name]}"/>')
        parts.append(f'<text x="{at + 14}" y="40">{escape(name)} ({report.counts()[name]})</text>')
        at += 40 + 7 * (len(name) + 5)
    for index in range(5):
        moment = since + (until - since) * index / 4
        label = datetime.fromtimestamp(moment, UTC).strftime("%m-%d %H:%M")
        here = f"{x(moment):.1f}"
        parts.append(f'<line x1="{here}" x2="{here}" y1="{TOP - 6}" y2="{height - 26}" stroke="{RULE}"/>')
        parts.append(f'<text x="{here}" y="{height - 10}" text-anchor="middle">{label}</text>')
    lines = {entity: TOP + ROW * index for index, entity in enumerate(shown)}
    for entity, y in lines.items():
        parts.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(entity[:20])}</text>')
    for alert in report.alerts:
        y = lines.get(alert.entity)
        if y is None:
            continue
        colour = colours[alert.trigger]
        if alert.kind == "momentary":
            parts.append(f'<circle cx="{x(alert.started_at):.1f}" cy="{y + 8}" r="4" fill="{colour}"/>')
        else:
            begin, end = x(alert.started_at), x(alert.resolved_at if alert.resolved_at is not None else until)
            parts.append(
                f'<rect x="{begin:.1f}" y="{y + 4}" width="{max(2.0, end - begin):.1f}" height="9" rx="2" '
                f'fill="{colour}" fill-opacity="0.75"/>'
            )
    if len(everybody) > len(shown):
        parts.append(f'<text x="12" y="{height - 10}">and {len(everybody) - len(shown)} more</text>')
    return "\n".join([*parts, "</svg>"])
