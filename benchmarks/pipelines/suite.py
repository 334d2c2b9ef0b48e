"""The `pipelines` suite: N entities through two stages of small files, of ours and of other build tools.

Ours is run as a user runs it: commands in processes of their own, on a server that is up. What every tool does: make
`mid/N.txt` from `in/N.txt` by upper-casing it, and `out/N.txt` from that with a mark at its end. Those that start a
process, or more, for each file are given fewer files; a figure of ours for the same number stands beside theirs. While
they are at it, the large pipeline settles and has its quiet minute, of which only processor time counts.

Files are deleted at the end of a run: ext4 steps over inodes that were deleted lately, which makes the next build up to
three times as slow.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import psutil

from benchmarks.pipelines.logs_pipeline import write_log
from benchmarks.pipelines.peers import PEERS, Peer, prepare_ninja
from benchmarks.shared import report
from benchmarks.shared.contenders import say
from benchmarks.shared.postgres import Server
from benchmarks.shared.venv import ROOT

CHECK = (sys.executable, "-m", "tidemill.cli.start", "pipeline", "check")
RUN = (sys.executable, "-m", "tidemill.cli.main", "pipeline", "run")
PIPELINE = Path(__file__).with_name("copies_pipeline.py")
SHARED = Path(__file__).with_name("logs_pipeline.py")
PATIENCE = 600.0
PEER_PATIENCE = 180.0  # for a build or a check of a peer: all of it is to take a few minutes
SETTLES = 100.0  # seconds until a large pipeline has written its manifests, and has scanned once since
QUIET = 60.0


class Plan(msgspec.Struct, frozen=True):
    """How many entities, and how often each check is done: `many` for the quiet minute, `shared` for two builders."""

    entities: int
    many: int | None
    rounds: int
    peers: tuple[str, ...]
    shared: int = 2_000


TOY = Plan(entities=20, many=None, rounds=1, peers=(), shared=10)
QUICK = Plan(entities=2_000, many=None, rounds=3, peers=("ninja", "luigi"))
FULL = Plan(entities=10_000, many=100_000, rounds=3, peers=("ninja", "luigi", "snakemake", "dvc", "redun", "dagster"))


class Live(msgspec.Struct, frozen=True):
    """A running pipeline: seconds from a write to what follows from it, and its memory."""

    change: float
    memory: float


class Ours:
    """Our pipeline on one root and one database."""

    def __init__(self, dsn: str, root: Path) -> None:
        self.root = root
        self.dsn = dsn
        # A user's Python keeps its byte code, and so do the environments of the peers.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        self._environment = {
            **kept,
            "TIDEMILL_DATABASE_URL": dsn,
            "PIPELINE_ROOT": str(root),
            "PYTHONPATH": str(ROOT),
        }

    def build(self) -> float:
        return timed(lambda: self._run(*RUN, str(PIPELINE), "--once"))

    def build_together(self, builders: int) -> float:
        """The seconds in which so many builders at once have built the shared pipeline."""

        def build() -> None:
            with ThreadPoolExecutor(builders) as pool:
                list(pool.map(lambda _: self._run(*RUN, str(SHARED), "--once"), range(builders)))

        return timed(build)

    def check(self) -> float:
        return timed(lambda: self._run(*CHECK, str(PIPELINE)))

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, env=self._environment, cwd=self.root, capture_output=True, text=True, timeout=PATIENCE
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    @contextmanager
    def live(self, changes: int) -> Iterator[tuple[Live, psutil.Process]]:
        """Keep the pipeline up to date for as long as the block lasts, and change an input at its beginning."""
        with open(self.root / "run.log", "wb") as log:
            process = subprocess.Popen(
                [*RUN, str(PIPELINE)], env=self._environment, cwd=self.root, stdout=log, stderr=log
            )
        try:
            until(lambda: b"driving the pipeline" in (self.root / "run.log").read_bytes())
            seen = sorted(self._change(number) for number in range(changes))
            known = psutil.Process(process.pid)
            yield Live(seen[len(seen) // 2], memory_mb(known)), known
        finally:
            process.terminate()
            process.wait()

    def _change(self, number: int) -> float:
        text = f"changed {number} {time.time()}"
        (self.root / "in/7.txt").write_text(text)
        return timed(lambda: until(lambda: (self.root / "out/7.txt").read_text() == f"{text.upper()}!"))


class Run:
    """One run of the suite on one server."""

    def __init__(self, server: Server, plan: Plan) -> None:
        self._server = server
        self._plan = plan
        self._folder = Path()

    def rows(self) -> list[report.Row]:
        """Measure ours, then each peer beside ours with as many entities as it can take."""
        with tempfile.TemporaryDirectory(prefix="tidemill-bench-", ignore_cleanup_errors=True) as folder:
            self._folder = Path(folder)
            return self._rows()

    def _rows(self) -> list[report.Row]:
        plan, rows = self._plan, []
        with _Ours(self._server, self._folder, plan.entities) as ours:
            cold = ours.build()
            check = min(ours.check() for _ in range(plan.rounds))
            if "ninja" in plan.peers:
                theirs = measure_ninja_check(ours.root, plan.entities, plan.rounds)
                rows.append(_less("noop_check", "s", check, "ninja", theirs))
            with ours.live(plan.rounds) as (live, _):
                rows.append(_less("one_change", "s", live.change, "limit", 1.0))
        say_figures("ours", plan.entities, cold, check)
        rows += self._together()
        if plan.many is None:
            rows.append(_less("memory_mb", "MB", live.memory, "limit", 300.0))
            rows += self._peers(cold, check)
        else:
            rows += self._many(plan.many, lambda: self._peers(cold, check))
        return sorted(rows, key=lambda row: row.name)

    def _together(self) -> list[report.Row]:
        """Two builders of one pipeline: faster than one, and each state is built once."""
        count = self._plan.shared
        with _Ours(self._server, self._folder, count, write_log) as ours:
            one = ours.build_together(1)
        with _Ours(self._server, self._folder, count, write_log) as ours:
            two = ours.build_together(2)
            builds = asyncio.run(_count_builds(ours.dsn))
        say(f"one builder {one:.2f} s, two builders {two:.2f} s, {builds} builds of {3 * count} states")
        return [
            _less("two_builders", "s", two, "one_builder", one),
            _less("two_builders_builds_per_state", "", builds / (3 * count), "limit", 1.0),
        ]

    def _peers(self, cold: float, check: float) -> list[report.Row]:
        """Each peer, beside ours with as many entities."""
        plan, rows = self._plan, []
        best: tuple[float, float] | None = None
        for peer in (PEERS[name] for name in plan.peers):
            count = min(plan.entities, peer.most)
            theirs = measure(peer, self._folder, count)
            if theirs is None:
                continue
            own = (cold, check) if count == plan.entities else self._smaller(count)
            rows.append(_less("cold_build", "s", own[0], peer.name, theirs[0]))
            if theirs[1] is not None:
                rows.append(_less("noop_check", "s", own[1], peer.name, theirs[1]))
            if peer.name != "ninja" and (best is None or theirs[0] / own[0] < best[1] / best[0]):
                best = (own[0], theirs[0])
        if best is not None:
            rows.append(_less("cold_build", "s", best[0], "best_peer", best[1]))
        return rows

    def _many(self, count: int, meanwhile: Callable[[], list[report.Row]]) -> list[report.Row]:
        """The large pipeline. `meanwhile` is done while it settles and is quiet."""
        with _Ours(self._server, self._folder, count) as ours:
            cold = ours.build()
            check = min(ours.check() for _ in range(self._plan.rounds))
            say_figures("ours", count, cold, check)
            theirs = measure_ninja_check(ours.root, count, self._plan.rounds)
            with ours.live(self._plan.rounds) as (live, process), ThreadPoolExecutor(1) as clock:
                quiet = clock.submit(quiet_minute, process)
                rows = meanwhile()
                memory = max(live.memory, memory_mb(process))
                rows.append(_less("quiet_minute_cpu", "s", quiet.result(), "limit", 0.5))
        rows.append(_less("noop_check_100k", "s", check, "ninja", theirs))
        rows.append(_less("one_change_100k", "s", live.change, "limit", 1.0))
        rows.append(_less("memory_mb", "MB", memory, "limit", 300.0))
        return rows

    def _smaller(self, count: int) -> tuple[float, float]:
        with _Ours(self._server, self._folder, count) as ours:
            found = ours.build(), min(ours.check() for _ in range(3))
        say_figures("ours", count, *found)
        return found


def quiet_minute(process: psutil.Process) -> float:
    """Processor seconds of a minute in which nothing happens to a pipeline, once it has settled."""
    time.sleep(SETTLES)
    before = _processor_seconds(process)
    time.sleep(QUIET)
    return _processor_seconds(process) - before


def _processor_seconds(process: psutil.Process) -> float:
    """Of a supervisor and its child."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def memory_mb(process: psutil.Process) -> float:
    """What the pipeline's own process takes: its supervisor is the same for all roles, and does not grow."""
    return max(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 1e6


def _less(name: str, unit: str, ours: float | None, peer: str, theirs: float | None) -> report.Row:
    return report.compare(name, unit, ours, peer, theirs, less_is_better=True)


def say_figures(name: str, count: int, cold: float, check: float | None) -> None:
    told = "no check of files" if check is None else f"check {check:.2f} s"
    say(f"{name}, {count} entities: cold {cold:.2f} s, {told} (load {os.getloadavg()[0]:.1f})")


class _Ours:
    """Our pipeline on a folder of fresh inputs and an empty database, for as long as the block lasts."""

    def __init__(self, server: Server, folder: Path, count: int, text: Callable[[int], str] | None = None) -> None:
        self._folder = folder
        self._database = server.database(f"ours_{count}")  # others may be in use meanwhile
        self._count = count
        self._text = text or small_text

    def __enter__(self) -> Ours:
        root = Path(tempfile.mkdtemp(prefix="ours-", dir=self._folder))
        write_inputs(root, self._count, self._text)
        os.sync()  # The first commit of a build would wait for these files, too.
        dsn = self._database.__enter__()
        asyncio.run(_install(dsn))
        return Ours(dsn, root)

    def __exit__(self, *error: object) -> None:
        self._database.__exit__(None, None, None)


async def _count_builds(dsn: str) -> int:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval("SELECT count(*) FROM tidemill.state_build")
    finally:
        await connection.close()


async def _install(dsn: str) -> None:
    from benchmarks.shared.schema import install_schema

    await install_schema(dsn)


def measure(peer: Peer, folder: Path, count: int) -> tuple[float, float | None] | None:
    """A peer's cold build and its check of everything, in seconds; None if it cannot be had here."""
    why = peer.find()
    if why is not None:
        say(f"{peer.name}: {why}")
        return None
    root = Path(tempfile.mkdtemp(prefix=f"{peer.name}-", dir=folder))
    write_inputs(root, count)
    run = partial(peer.run, root, PEER_PATIENCE)
    try:
        peer.prepare(root, count, peer.programs)
        built = timed(run)
        check = min(timed(run) for _ in range(2)) if peer.checks else None
    except (subprocess.SubprocessError, OSError) as error:
        say(f"{peer.name}, {count} entities: {error}")
        return None
    if not (root / f"out/{count - 1}.txt").read_text().endswith("!"):
        say(f"{peer.name}, {count} entities: it has not built what it should")
        return None
    say_figures(peer.name, count, built, check)
    return built, check


def measure_ninja_check(root: Path, count: int, rounds: int) -> float | None:
    """Ninja's check of the files that ours has built: to have them built by a process each would take too long."""
    peer = PEERS["ninja"]
    if why := peer.find():
        say(f"{peer.name}: {why}")
        return None
    prepare_ninja(root, count, peer.programs, is_built=True)
    check = min(timed(partial(peer.run, root, PATIENCE)) for _ in range(rounds))
    say(f"ninja, {count} entities: check {check:.2f} s (load {os.getloadavg()[0]:.1f})")
    return check


def small_text(number: int) -> str:
    return f"the text of entity {number}, " * 4


def write_inputs(root: Path, count: int, text: Callable[[int], str] = small_text) -> None:
    for folder in ("in", "mid", "out"):
        (root / folder).mkdir(parents=True)
    for number in range(count):
        (root / f"in/{number}.txt").write_text(text(number))


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            raise TimeoutError("it never came true")
        time.sleep(0.002)
