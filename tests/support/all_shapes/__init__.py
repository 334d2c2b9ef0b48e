"""Work of all shapes in real processes, by this code or by another version of it, and what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg

from tests.support.waiting import PATIENCE, eventually
from tidemill.store.database import Database, DatabaseSettings
from tidemill.store.migrate import applied_version

ROOT = Path(__file__).resolve().parents[3]
SHAPES = Path(__file__).with_name("shapes.py")

#: What was acknowledged and has not come to its end, by kind.
UNFINISHED = {
    "job": "SELECT g FROM unnest($1::bigint[], $2::bigint[]) AS a(id, g) WHERE NOT EXISTS (SELECT FROM "
    "tidemill.job_history AS h WHERE h.id = a.id AND h.state = 'succeeded')",
    "run": "SELECT g FROM unnest($1::bigint[], $2::bigint[]) AS a(id, g) WHERE NOT EXISTS (SELECT FROM "
    "tidemill.run AS r WHERE r.id = a.id AND r.state = 'succeeded')",
    "message": "SELECT g FROM unnest($1::bigint[], $2::bigint[]) AS a(id, g) WHERE (SELECT count(*) FROM "
    "tidemill.job_history AS h WHERE h.task = 'noted' AND h.args ->> 'number' = g::text AND h.state = 'succeeded') "
    "<> 1 OR (SELECT count(*) FROM tidemill.alert AS t WHERE t.entity = 'number ' || g) <> 1",
}
UNFINISHED["dag"] = UNFINISHED["run"]


class Process:
    """A process of ours in a folder of its own; `said` is what it has written."""

    def __init__(self, folder: Path, name: str, arguments: list[str], package: Path = ROOT, **environment: str) -> None:
        self.output = folder / f"{name}.log"
        self._is_stopped = False
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMILL_")}
        with self.output.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env={**kept, "PYTHONPATH": str(package), "TIDEMILL_LOG_FORMAT": "human", **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    async def says(self, text: str) -> None:
        """Return when it has written this."""

        def has_said() -> bool:
            self.check()
            return text in self.said

        await eventually(has_said, timeout=2 * PATIENCE, what=f"{self.output.name} says {text!r}")

    def check(self) -> None:
        """Fail if it has ended by itself."""
        assert self._is_stopped or self.is_alive, f"it ended with {self._process.returncode}:\n{self.said}"

    async def stop(self) -> int:
        """End it with SIGTERM; returns its exit status."""
        self._is_stopped = True
        self._process.terminate()
        await eventually(lambda: not self.is_alive, what=f"{self.output.name} ends")
        return self._process.returncode

    def close(self) -> None:
        """End it and what it has started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Stage:
    """A database, and the processes on it, all of which end with the block."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self._processes: list[Process] = []

    def up(
        self, name: str, package: Path = ROOT, *, app: Path = SHAPES, port: int | None = None, **environment: str
    ) -> Process:
        """Everything that `tidemill up` starts; with a server if there is a port for it."""
        server = ["--no-server"] if port is None else ["--port", str(port), "--trust-local"]
        return self._start(name, ["-m", "tidemill.cli.main", "up", str(app), *server], package, **environment)

    def load(self, name: str, package: Path = ROOT, *, first: int = 0, pause: float = 0.1) -> Process:
        """Work that is started by this version of the code, numbered from `first` on."""
        numbers = {"SHAPES_FIRST": str(first), "SHAPES_PAUSE": str(pause)}
        return self._start(name, [str(SHAPES), f"{name}.acknowledged"], package, **numbers)

    def command(self, *arguments: str, package: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        """One command to its end."""
        own = {"TIDEMILL_DATABASE_URL": self.url, "SHAPES_ROOT": str(self.folder / "root")}
        env = {**os.environ, "PYTHONPATH": str(package), **own, **environment}
        command = [sys.executable, "-m", "tidemill.cli.main", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def acknowledged(self, name: str) -> dict[str, list[tuple[int, int]]]:
        """The ids and numbers that a load has acknowledged, by kind."""
        found: dict[str, list[tuple[int, int]]] = {}
        path = self.folder / f"{name}.acknowledged"
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, id, number = line.split()
            found.setdefault(kind, []).append((int(id), int(number)))
        return found

    async def migrated(self, version: int) -> None:
        """Return when the schema is at this version."""
        async with Database(DatabaseSettings(url=self.url)) as database:

            async def is_migrated() -> bool:
                self.check()
                return await applied_version(database) == version

            await eventually(is_migrated, timeout=2 * PATIENCE, what=f"the schema is at version {version}")

    async def has_acknowledged(self, name: str, count: int) -> None:
        """Return when a load has acknowledged so many of each kind in all."""

        def enough() -> bool:
            self.check()
            found = self.acknowledged(name)
            return len(found) == 5 and min(map(len, found.values())) >= count

        await eventually(enough, timeout=2 * PATIENCE, what=f"{name} has {count} acknowledgements of each kind")

    async def unfinished(self, *names: str) -> dict[str, Any]:
        """What was acknowledged and has not come to its end."""
        left: dict[str, Any] = {}
        connection = await asyncpg.connect(self.url)
        try:
            for name in names:
                for kind, pairs in self.acknowledged(name).items():
                    if kind == "state":
                        out = self.folder / "root" / "out"
                        missing = [number for _, number in pairs if not (out / f"n{number}.txt").exists()]
                    else:
                        ids, numbers = zip(*pairs, strict=True)
                        missing = [row[0] for row in await connection.fetch(UNFINISHED[kind], ids, numbers)]
                    if missing:
                        left[f"{kind} of {name}"] = missing
        finally:
            await connection.close()
        return left

    async def all_finished(self, *names: str) -> None:
        """Return when all that was acknowledged has come to its end; fails with what has not."""
        left: dict[str, Any] = {}

        async def is_done() -> bool:
            self.check()
            left.clear()
            left.update(await self.unfinished(*names))
            return not left

        try:
            await eventually(is_done, timeout=2 * PATIENCE, interval=0.1, what="all that was acknowledged has ended")
        except AssertionError as error:
            said = "\n".join(f"== {each.output.name}\n{each.said[-4000:]}" for each in self._processes)
            raise AssertionError(f"{error}; left: {left}\n{said}") from None

    def check(self) -> None:
        """Fail if a process has ended that was not stopped."""
        for process in self._processes:
            process.check()

    def close(self) -> None:
        for process in self._processes:
            process.close()

    def _start(self, name: str, arguments: list[str], package: Path, **environment: str) -> Process:
        settings = {
            "TIDEMILL_DATABASE_URL": self.url,
            "SHAPES_ROOT": str(self.folder / "root"),
            "TIDEMILL_POOL_SIZE": "3",
        }
        process = Process(self.folder, name, arguments, package, **settings, **environment)
        self._processes.append(process)
        return process


@contextmanager
def stage(url: str, folder: Path) -> Iterator[Stage]:
    """A stage whose processes end with the block."""
    made = Stage(url, folder)
    try:
        yield made
    finally:
        made.close()
