"""The page that `tidemill top` draws: one table each for hosts, workers, queues and runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidemill.cli.render import ago, count_cell, cut, held_columns, names, short, state
from tidemill.engine.telemetry.hosts import HostSample, ProcessUsage
from tidemill.ops.admin.hosts import Host
from tidemill.ops.jobs.queues import QueueLine
from tidemill.ops.jobs.workers import WorkerLine
from tidemill.ops.runs.runs import RunLine
from tidemill.version import VERSION

WIDE = 104
STALE = 20.0
BAR = 8
FIRST = 14  # the least width of every table's first column, so that they line up
WARN, ALARM = 0.75, 0.9


class TopData(msgspec.Struct, frozen=True):
    """What is drawn, or printed as JSON."""

    where: str
    at: datetime
    hosts: Sequence[Host]
    workers: Sequence[WorkerLine]
    queues: Sequence[QueueLine]
    runs: Sequence[RunLine]


def top_page(
    data: TopData, *, width: int, height: int | None = None, trouble: str | None = None, live: bool = False
) -> RenderableType:
    """The whole screen; with a `height`, long tables are cut so that each of them shows something."""
    samples = [(row, msgspec.convert(row.sample, HostSample)) for row in data.hosts]
    used = {(row.name, each.pid): each for row, sample in samples for each in sample.processes}
    most = _share_height(data, sum(len(sample.gpus) for _, sample in samples), height)
    parts: list[RenderableType] = [_title(data, width, live)]
    if trouble is not None:
        parts.append(Text(cut(trouble, width), style="bold red", no_wrap=True))
    parts += _part(
        "hosts",
        [_hosts(samples[: most[0]], width), *_gpus(samples[: most[0]], width)] if samples else [],
        len(samples) - most[0],
        "no host has been sampled: each shows up seconds after `tidemill up app.py` or `tidemill worker app.py` starts",
    )
    parts += _part(
        "workers",
        [_workers(data.workers[: most[1]], used, data.at, width)] if data.workers else [],
        len(data.workers) - most[1],
        "no worker runs: tidemill worker app.py",
    )
    parts += _part(
        "queues",
        [_queues(data.queues[: most[2]], width)] if data.queues else [],
        len(data.queues) - most[2],
        "no queue is in use: a queue is made by enqueueing to it",
    )
    parts += _part(
        "runs",
        [_runs(data.runs[: most[3]], data.at)] if data.runs else [],
        len(data.runs) - most[3],
        "no runs: start one with `await app.start(Workflow, ...)`",
    )
    return Group(*parts)


def size(number: float) -> str:
    """Bytes in few figures: 812M, 1.4G, 64G."""
    for unit in ("B", "K", "M", "G", "T"):
        if number < 1000 or unit == "T":
            return f"{number:.0f}{unit}" if unit in "BKM" or number >= 10 else f"{number:.1f}{unit}"
        number /= 1024
    return ""


def _title(data: TopData, width: int, live: bool) -> Text:
    left = f"tidemill {VERSION} · {data.where}"
    right = f"{data.at.astimezone():%H:%M:%S}" + (" · q quits" if live else "")
    room = max(10, width - len(right) - 2)
    left = left if len(left) <= room else f"{left[: room - 1]}…"
    return Text.assemble((left, "bold"), " " * (width - len(left) - len(right)), (right, "dim"), no_wrap=True)


def _part(name: str, tables: list[RenderableType], left_out: int, empty: str) -> list[RenderableType]:
    if not tables:
        return [Text(""), Text.assemble((f"{name}  ", "bold"), (empty, "dim"))]
    where = "tidemill top --once" if name == "hosts" else f"tidemill {name}"
    more = [Text(f"and {left_out} more: {where}", style="dim")] if left_out > 0 else []
    return [Text(""), *tables, *more]


def _table(*columns: str, numbers: Sequence[str] = (), rest: str | None = None) -> Table:
    """A bare table whose first column gives way last, and whose column `rest` takes what room there is."""
    made = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 2, 0, 0), expand=rest is not None)
    for index, name in enumerate(columns):
        made.add_column(
            name,
            justify="right" if name in numbers else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if name == rest else None,
            min_width=FIRST if index == 0 else None,
            header_style="bold" if index == 0 else None,
        )
    return made


def _hosts(samples: Sequence[tuple[Host, HostSample]], width: int) -> Table:
    remarks = {row.name: _remark(row, sample, width) for row, sample in samples}
    last = ("limit",) if any(remarks.values()) else ()
    made = _table("hosts", "cpu", "memory", "disk", "load", "ours", *last, numbers=("load",))
    for row, sample in samples:
        stale = row.age > STALE
        made.add_row(
            Text(cut(row.name, 40 if width >= WIDE else 20), style="dim" if stale else ""),
            _gauge(sample.cpu / sample.cores, f"{sample.cpu:.1f}/{sample.cores}", width),
            _gauge(sample.memory / sample.memory_total, f"{size(sample.memory)}/{size(sample.memory_total)}", width),
            _gauge(sample.disk / max(1, sample.disk_total), "", width, bar=False),
            Text(f"{sample.load:.1f}", style="yellow" if sample.load > sample.cores else ""),
            Text(f"{_cores(sample.ours.cpu, width)} {size(sample.ours.memory)}", style="cyan"),
            *([remarks[row.name]] if last else []),
        )
    return made


def _remark(row: Host, sample: HostSample, width: int) -> Text:
    """What our control groups may use, where they are limited; or that the host is silent."""
    if row.age > STALE:
        return Text(f"silent {short(row.age)}", style="yellow")
    group = sample.group
    if group is None:
        return Text("")
    words = [] if group.cpu_limit is None else [_cores(group.cpu_limit, width)]
    words += [] if group.memory_limit is None else [size(group.memory_limit)]
    held = group.throttled > 0.05 or (group.memory_limit is not None and group.memory > ALARM * group.memory_limit)
    return Text(" ".join(words), style="bold yellow" if held else "")


def _gpus(samples: Sequence[tuple[Host, HostSample]], width: int) -> list[RenderableType]:
    found = [(row.name, gpu) for row, sample in samples for gpu in sample.gpus]
    if not found:
        return []
    made = _table("gpus", "model", "busy", "memory", "heat", "power", numbers=("heat", "power"))
    for host, gpu in found:
        memory = "" if gpu.memory is None else size(gpu.memory)
        share = None if gpu.memory is None else gpu.memory / (gpu.memory_total or 1)
        made.add_row(
            cut(f"{host} {gpu.index}", 40 if width >= WIDE else 20),
            cut(gpu.name, 30),
            _gauge(gpu.busy, "", width, alarming=False),
            _gauge(share, f"{memory}/{size(gpu.memory_total or 0)}", width),
            "" if gpu.temperature is None else f"{gpu.temperature:.0f}°C",
            "" if gpu.power is None else f"{gpu.power:.0f}W",
        )
    return [Text(""), made]


def _workers(
    rows: Sequence[WorkerLine], used: Mapping[tuple[str, int], ProcessUsage], now: datetime, width: int
) -> Table:
    made = _table(
        "workers", "status", "busy", "cpu", "memory", "seen", "queues", numbers=("busy", "cpu", "memory"), rest="queues"
    )
    for row in rows:
        process = used.get((row.host, row.pid))
        lapsed = row.lease_until <= now or row.flagged_at is not None
        made.add_row(
            _process(row, 44 if width >= WIDE else 24),
            state("silent" if lapsed else row.status),
            f"{row.running}/{row.max_concurrency}" if row.max_concurrency else Text("run worker", style="dim"),
            "" if process is None else f"{process.cpu:.2f}",
            "" if process is None else size(process.memory),
            ago(row.seen_at, now).removesuffix(" ago"),
            Text(names(row.queues), style="dim"),
        )
    return made


def _queues(rows: Sequence[QueueLine], width: int) -> Table:
    wide = width >= WIDE
    held = held_columns((row.throttled for row in rows), (row.no_worker for row in rows))
    heads = (
        ("waiting", "running", "scheduled", *held, "done/min", "failed/min", "oldest", "workers")
        if wide
        else ("wait", "run", "sched", *held, "done/m", "fail/m", "oldest", "served")
    )
    made = _table("queues", *heads, numbers=heads)
    for row in rows:
        made.add_row(
            cut(row.name, 40 if wide else 20),
            count_cell(row.waiting, "bold"),
            count_cell(row.running, "cyan"),
            count_cell(row.scheduled),
            *(count_cell(getattr(row, name), "yellow") for name in held),
            count_cell(row.succeeded or 0, "green"),
            count_cell(row.unsuccessful or 0, "bold red"),
            "" if row.oldest is None else short(row.oldest),
            count_cell(row.workers) if row.workers else Text("none", style="yellow"),
        )
    return made


def _runs(rows: Sequence[RunLine], now: datetime) -> Table:
    made = _table("runs", "state", "ticks", "started", "took", "workflow", "note", numbers=("ticks",), rest="note")
    for row in rows:
        ended = row.ended_at
        made.add_row(
            f"r{row.id}",
            state(row.state),
            f"{row.ticks:,}",
            ago(row.created_at, now),
            "" if ended is None else short((ended - row.created_at).total_seconds()),
            cut(row.workflow, 30),
            Text(cut(row.note), style="dim"),
        )
    return made


def _gauge(share: float | None, text: str, width: int, *, bar: bool = True, alarming: bool = True) -> Text:
    """A share as a bar with words beside it; without words, as a percentage."""
    if share is None:
        return Text("·", style="dim")
    share = min(1.0, max(0.0, share))
    style = "red" if alarming and share >= ALARM else "yellow" if alarming and share >= WARN else "green"
    words = text or f"{share:.0%}"
    if not bar or width < WIDE:
        return Text(words, style=style if style != "green" else "")
    full = round(share * BAR)
    return Text.assemble(("█" * full, style), ("░" * (BAR - full), "dim"), f" {words}")


def _cores(number: float, width: int) -> str:
    return f"{number:.3g} cores" if width >= WIDE else f"{number:.2g}c"


def _process(row: WorkerLine, most: int) -> str:
    """A worker's process: a long name is cut, but never the process id."""
    pid = f":{row.pid}"
    return cut(row.host, most - len(pid)) + pid


def _share_height(data: TopData, gpus: int, height: int | None) -> tuple[int, int, int, int]:
    """How many rows each table may have: what is short is shown whole, the rest share what room is left."""
    wanted = [len(data.hosts), len(data.workers), len(data.queues), len(data.runs)]
    if height is None:
        return (wanted[0], wanted[1], wanted[2], wanted[3])
    room = max(4, height - 1 - 3 * 4 - (gpus + 2 if gpus else 0))
    given = [0, 0, 0, 0]
    for left, index in enumerate(sorted(range(4), key=lambda each: wanted[each])):
        given[index] = min(wanted[index], max(1, room // (4 - left)))
        room -= given[index]
    return (given[0], given[1], given[2], given[3])
