"""Streams for people: a table of sources and one of plans, and dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from tidemill.cli.jobs.page import cut_note
from tidemill.cli.render import ago, counted, cut, facts_grid, local, names, table
from tidemill.core.duration import format_duration
from tidemill.ops.streams.dead_letters import DeadLetterLine, FailedAttemptLine, why_dead
from tidemill.ops.streams.streams import StreamLine

SHOWN = 2000


def streams_page(lines: Sequence[StreamLine]) -> RenderableType:
    """All running streams."""
    parts: list[RenderableType] = []
    for line in lines:
        for each in line.dispatchers:
            parts += [_title(line, each), Padding(_sources(each["sources"]), (0, 0, 1, 2), expand=False)]
            if each.get("sinks"):
                parts.append(Padding(_sinks(each["sinks"]), (0, 0, 1, 2), expand=False))
            if each["plans"]:
                parts.append(Padding(_plans(each["plans"]), (0, 0, 1, 2), expand=False))
    return Group(*parts) if parts else Text("no stream is running: start one with `tidemill stream run app.py`", "dim")


def _title(line: StreamLine, each: Mapping[str, Any]) -> Text:
    live, is_running = each["live"], each["mode"] == "run"
    return Text.assemble(
        (line.name, "bold"),
        "  ",
        ("running" if is_running else "draining", "" if is_running else "yellow"),
        f"  {each['host']}:{each['pid']}  {each['in_flight']:,} of {each['max_concurrency']:,} in flight, ",
        (counted(each["engines"], "engine"), "" if each["engines"] else "red"),
        f", {counted(each['restarts'], 'restart')}" if each["restarts"] else "",
        f", {line.retries:,} waiting for a retry" if line.retries else "",
        ", ",
        (counted(line.dead, "dead letter"), "red" if line.dead else ""),
        f", live requests: {live['open']:,} open, {live['done']:,} done, {live['shed']:,} rejected"
        if live["done"] or live["shed"]
        else "",
    )


def _sources(sources: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = (
        "source", "health", "weight", "limit", "rate", "lag", "waiting", "in flight", "done", "retried", "dead",
        "expired", "duplicates",
    )  # fmt: skip
    made = table(*columns, numbers=[name for name in columns[2:] if name != "limit"])
    for each in sources:
        made.add_row(
            Text(each["name"], style="" if each["enabled"] else "dim strike"),
            Text(each.get("health", ""), style="red" if each.get("health") == "failing" else "dim"),
            f"{each['weight']:g}",
            _limit(each),
            f"{each['rate']:,.0f}/s",
            "" if each["lag"] is None else f"{each['lag']:,}",
            f"{each.get('waiting', 0):,}",
            f"{each['in_flight']:,}",
            f"{each['done']:,}",
            f"{each['retried']:,}",
            Text(f"{each['dead']:,}", style="red" if each["dead"] else ""),
            f"{each['expired']:,}",
            f"{each['duplicates']:,}",
        )
    errors = [
        Text(f"{each['name']}: {each['error']}", style="red") for each in sources if each.get("health") == "failing"
    ]
    forgotten = [
        Text(
            f"{each['name']}: {each['known_ids']:,} message ids are remembered here; {each['forgotten_ids']:,} were "
            "forgotten before dedup_window was over, and are only found in the database",
            style="yellow",
        )
        for each in sources
        if each.get("forgotten_ids")
    ]
    return Group(made, *errors, *forgotten)


def _sinks(sinks: Sequence[Mapping[str, Any]]) -> RenderableType:
    columns = ("sink", "health", "waiting", "oldest", "sent", "retried", "dead")
    made = table(*columns, numbers=columns[2:])
    for each in sinks:
        made.add_row(
            Text(each["name"], style="" if each["enabled"] else "dim strike"),
            Text(each["health"], style="red" if each["health"] == "failing" else "dim"),
            f"{each['waiting']:,}",
            "" if each["oldest"] is None else format_duration(each["oldest"]),
            f"{each['sent']:,}",
            f"{each['retried']:,}",
            Text(f"{each['dead']:,}", style="red" if each["dead"] else ""),
        )
    errors = [Text(f"{each['name']}: {each['error']}", style="red") for each in sinks if each["health"] == "failing"]
    return Group(made, *errors)


def _limit(source: Mapping[str, Any]) -> str:
    """The limits of a source: messages a second with their burst, and the part that this dispatcher has of them."""
    words: list[str] = []
    if source["max_qps"] is not None:
        words.append(f"{source['max_qps']:g}/s")
        if source.get("burst") is not None:
            words.append(f"burst {source['burst']:g}")
        if source.get("qps_part") not in (None, source["max_qps"]):
            words.append(f"here {source['qps_part']:.3g}/s")
    if source.get("max_concurrency") is not None:
        words.append(f"{source['max_concurrency']} at once")
    return ", ".join(words)


def _plans(plans: Mapping[str, Mapping[str, Any]]) -> RenderableType:
    made = table(
        "plan", "done", "filtered", "failed", "p50", "p99", numbers=("done", "filtered", "failed", "p50", "p99")
    )
    for name, each in sorted(plans.items()):
        made.add_row(
            name,
            f"{each['done']:,}",
            f"{each['filtered']:,}",
            Text(f"{each['failed']:,}", style="red" if each["failed"] else ""),
            _length(each["p50"]),
            _length(each["p99"]),
        )
    return made


def _length(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds * 1e6:.0f}µs" if seconds < 0.001 else format_duration(seconds)


def dead_table(letters: Sequence[DeadLetterLine]) -> RenderableType:
    """Dead letters, one a line."""
    made = table("id", "stream", "source", "plan", "why", "attempts", "when", "error", numbers=("id",), wide="error")
    for each in letters:
        made.add_row(
            str(each.id),
            each.stream,
            each.source if each.sink is None else f"{each.source} → {each.sink}",
            names(each.plans),
            each.why,
            str(each.attempts),
            ago(each.buried_at),
            cut(each.error),
        )
    return made


def attempt_lines(history: Sequence[FailedAttemptLine]) -> list[Text]:
    """Failed attempts: where and how long each ran, what it logged, and the traceback of the last one."""
    shown: list[Text] = []
    for each in history:
        where = f", {each.engine}" if each.engine else ""
        took = f", {_length(each.seconds)}" if each.seconds else ""
        shown.append(Text(f"attempt {each.attempt}, plan {each.plan or '-'}{took}{where}", "bold"))
        if each.waited:
            waits = ", ".join(f"{place} {_length(seconds)}" for place, seconds in sorted(each.waited.items()))
            shown.append(Text(f"  waited before: {waits}", "dim"))
        shown.append(Text(f"  {each.kind}: {each.error}", "red"))
        for line in each.lines or ():
            fields = " ".join(f"{name}={value}" for name, value in (line.get("fields") or {}).items())
            shown.append(Text(f"  {line.get('level', '')}: {line.get('event', '')} {fields}".rstrip(), "dim"))
    if history and history[-1].traceback:
        shown.append(Text(history[-1].traceback.rstrip()))
    return shown


def dead_page(letter: DeadLetterLine) -> RenderableType:
    """One dead letter in full."""
    given_up = f"{local(letter.buried_at)}  ({ago(letter.buried_at)}), after {counted(letter.attempts, 'attempt')}"
    facts = [
        ("stream", f"{letter.stream}, source {letter.source}, message {letter.place}"),
        ("sink", letter.sink or ""),
        ("plans", names(letter.plans) or "all"),
        ("given up", given_up),
        ("why", f"{letter.why}: {' '.join(why_dead(letter))}"),
        ("key", letter.key or ""),
        ("headers", "" if letter.headers is None else msgspec.json.encode(letter.headers).decode()),
        ("payload", letter.payload[:SHOWN]),
        ("", "" if letter.whole is None else cut_note(letter.payload_bytes, letter.whole)),
    ]
    attempts = (Padding(line, (0, 0, 0, 2)) for line in attempt_lines(letter.history))
    known = facts_grid((name, value) for name, value in facts if value)
    return Group(Text(f"dead letter {letter.id}", style="bold"), known, *attempts)
