"""The `pipelines` suite: N entities through two stages of small files, of ours and of other build tools.

Ours is run as a user runs it: commands in processes of their own, on a server that is up. What everybody does: make
`mid/N.txt` from `in/N.txt` by upper-casing it, and `out/N.txt` from that. Those that start a process, or more, for each
file are given fewer files; a figure of ours for the same number stands beside theirs.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import psutil

from benchmarks import report
from benchmarks.contenders import say
from benchmarks.pipelines_peers import PEERS, Peer
from benchmarks.server import Server

CHECK = (sys.executable, "-m", "tidemill.cli.start", "pipeline", "check")
RUN = (sys.executable, "-m", "tidemill.cli.main", "pipeline", "run")
PIPELINE = Path(__file__).with_name("pipelines_ours.py")
PATIENCE = 600.0


class Plan(msgspec.Struct, frozen=True):
    """How many entities, and how often each figure is taken. `many` is for the second no-op check."""

    entities: int
    many: int | None
    rounds: int
    peers: tuple[str, ...]


QUICK = Plan(entities=2_000, many=None, rounds=3, peers=("ninja", "luigi"))
FULL = Plan(entities=10_000, many=100_000, rounds=5, peers=("ninja", "luigi", "snakemake", "dvc"))


class Ours:
    """Our pipeline on one root and one database."""

    def __init__(self, dsn: str, root: Path) -> None:
        self.root = root
        self.environment = {**os.environ, "TIDEMILL_DATABASE_URL": dsn, "PIPELINE_ROOT": str(root)}
        self._folder = PIPELINE.parent.parent

    def build(self) -> float:
        return timed(lambda: self._run(*RUN, str(PIPELINE), "--once"))

    def check(self) -> float:
        return timed(lambda: self._run(*CHECK, str(PIPELINE)))

    def _run(self, *command: str) -> None:
        done = subprocess.run(
            command, env={**self.environment, "PYTHONPATH": str(self._folder)}, cwd=self.root, capture_output=True,
            text=True, timeout=PATIENCE,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def live(self, changes: int) -> tuple[float, float]:
        """A running pipeline: seconds from a write to what follows from it, and its memory in MB."""
        with open(self.root / "run.log", "wb") as log:
            process = subprocess.Popen(
                [*RUN, str(PIPELINE)], env={**self.environment, "PYTHONPATH": str(self._folder)}, cwd=self.root,
                stdout=log, stderr=log,
            )  # fmt: skip
        try:
            until(lambda: b"drives the pipeline" in (self.root / "run.log").read_bytes())
            seen = sorted(self._change(number) for number in range(changes))
            return seen[len(seen) // 2], psutil.Process(process.pid).memory_info().rss / 1e6
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

    def rows(self) -> list[report.Row]:
        """Measure ours, then each peer beside ours with as many entities as it can take."""
        plan, rows = self._plan, []
        with self._ours(plan.entities) as ours:
            cold = ours.build()
            checks = [ours.check() for _ in range(plan.rounds)]
            change, memory = ours.live(plan.rounds)
        say(f"ours, {plan.entities} entities: cold {cold:.2f} s, checks {', '.join(f'{c:.2f}' for c in checks)} s")
        best: tuple[float, float] | None = None
        for peer in (PEERS[name] for name in plan.peers):
            count = min(plan.entities, peer.most)
            own = (cold, min(checks)) if count == plan.entities else self._smaller(count)
            theirs = measure(peer, count, plan.rounds)
            if theirs is None:
                continue
            rows.append(report.compare("cold_build", "s", own[0], peer.name, theirs[0], less_is_better=True))
            rows.append(report.compare("noop_check", "s", own[1], peer.name, theirs[1], less_is_better=True))
            if peer.name != "ninja" and (best is None or theirs[0] / own[0] < best[1] / best[0]):
                best = (own[0], theirs[0])
        if best is not None:
            rows.append(report.compare("cold_build", "s", best[0], "best_peer", best[1], less_is_better=True))
        if plan.many is not None:
            with self._ours(plan.many) as ours:
                ours.build()
                many = min(ours.check() for _ in range(plan.rounds))
                _, memory = ours.live(plan.rounds)
            theirs = measure(PEERS["ninja"], plan.many, plan.rounds)
            rows.append(
                report.compare("noop_check_100k", "s", many, "ninja", theirs and theirs[1], less_is_better=True)
            )
        rows.append(report.compare("one_change", "s", change, "limit", 1.0, less_is_better=True))
        rows.append(report.compare("memory_mb", "MB", memory, "limit", 300.0, less_is_better=True))
        return sorted(rows, key=lambda row: row.name)

    def _smaller(self, count: int) -> tuple[float, float]:
        with self._ours(count) as ours:
            return ours.build(), min(ours.check() for _ in range(3))

    def _ours(self, count: int) -> "_Ours":
        return _Ours(self._server, count)


class _Ours:
    """Our pipeline on a folder of fresh inputs and an empty database, for as long as the block lasts."""

    def __init__(self, server: Server, count: int) -> None:
        self._database = server.database("ours")
        self._count = count

    def __enter__(self) -> Ours:
        self._root = Path(tempfile.mkdtemp(prefix="tidemill-bench-"))
        write_inputs(self._root, self._count)
        dsn = self._database.__enter__()
        asyncio.run(_install(dsn))
        return Ours(dsn, self._root)

    def __exit__(self, *error: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)
        self._database.__exit__(None, None, None)


async def _install(dsn: str) -> None:
    from benchmarks.ours import install_schema

    await install_schema(dsn)


def measure(peer: Peer, count: int, rounds: int) -> tuple[float, float] | None:
    """A peer's cold build and its check of everything, in seconds; None if it cannot be had here."""
    executable = peer.find()
    if executable is None:
        say(f"{peer.name}: it is not installed, and could not be")
        return None
    root = Path(tempfile.mkdtemp(prefix=f"tidemill-bench-{peer.name}-"))
    try:
        write_inputs(root, count)
        peer.prepare(root, count)
        run = partial(peer.run, executable, root, PATIENCE)
        try:
            built = timed(run)
            checks = [timed(run) for _ in range(rounds)]
        except (subprocess.SubprocessError, OSError) as error:
            say(f"{peer.name}, {count} entities: {error}")
            return None
        if not (root / f"out/{count - 1}.txt").exists():
            say(f"{peer.name}, {count} entities: it has not built what it should")
            return None
        say(f"{peer.name}, {count} entities: cold {built:.2f} s, check {min(checks):.2f} s")
        return built, min(checks)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def write_inputs(root: Path, count: int) -> None:
    for folder in ("in", "mid", "out"):
        (root / folder).mkdir(parents=True)
    for number in range(count):
        (root / f"in/{number}.txt").write_text(f"the text of entity {number}, " * 4)


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
