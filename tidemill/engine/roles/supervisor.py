"""The supervisor: keeps a handful of child processes running, and lets nothing outlive it.

A child ends only when the supervisor is asked to stop. If it ends otherwise - a watchdog (75, 76, 77), a lost lease
(70), a signal, an error - it is started again, after a pause that grows while it keeps dying young, and a log
line says why. A child that cannot even start (a wrong application, say) is not retried forever: the supervisor
gives up, and ends the others.

A child shows signs of life on a pipe, from a thread of its own: one a second, or more if leases are short. One that
shows none for as long as a lease lasts is stopped, or its code does not let go of the interpreter: it is killed and
started again.

`stop()` asks the children to end; a second call asks again, which they take as "at once". A child that still runs
after the grace period and a margin is killed. Each child runs in a session of its own, so Ctrl-C in a terminal
reaches the supervisor alone. On Linux the kernel kills the children when the supervisor dies: each of them asks
for that with `end_with_supervisor` when it starts.

Where it can, a supervisor of commands of ours starts children as copies of itself: see `forking`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
import structlog

from tidemill.engine.containment.crash_record import died_in_call, inherit_crash_record, make_crash_memory
from tidemill.engine.containment.exit_status import EXIT_MISCONFIGURED, EXIT_USAGE, EXITS
from tidemill.engine.roles.fork_service import ForkService, ask_supervisor_at, kill_group
from tidemill.engine.roles.forking import CAN_COPY, CopiedChild, ForkExecutor, prepare_copies, start_copy

log = structlog.get_logger("tidemill.supervisor")

#: Says to a child who its supervisor is; the child takes it out of its environment.
VARIABLE = "TIDEMILL_SUPERVISOR"
#: What a command of ours is run with.
PYTHON = (sys.executable, "-m", "tidemill.cli.main")
FIRST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE_FOR_CALLS = 0.1, 10.0, 0.5
SETTLED = 3.0  # a child that does not say when it works has started once it has lived this long
TRIES = 4  # to start a child that never settles
KILL_MARGIN = 15.0
LINE_LIMIT = 64 * 1024
SILENCE = 15.0
SIGN_SECONDS = 1.0
SIGNS = 8  # how many signs of life a child shows at least within the time that it may be silent
LOOKS = 4  # how often signs of life are looked for within the time that a child may be silent

#: What a child writes to the pipe of its supervisor: that it is alive, and that its role works.
ALIVE, STARTED = b".", b"!"

_PR_SET_PDEATHSIG = 1
_sign: int | None = None


Child = asyncio.subprocess.Process | CopiedChild


class ChildSpec(msgspec.Struct, frozen=True):
    """A process to keep running."""

    name: str
    command: tuple[str, ...]
    grace: float | None = None
    """How long it may take to end, if not as long as all others."""
    environment: Mapping[str, str] = {}
    """What it gets in its environment besides ours."""
    files: tuple[int, ...] = ()
    """The numbers of open files that it gets."""
    function: str = ""
    """What a copy of the supervisor calls instead of the command, if it is named here, with these values."""
    values: Mapping[str, Any] = {}


class Supervisor(msgspec.Struct, eq=False):
    """Runs children until stopped."""

    specs: Sequence[ChildSpec]
    grace: float
    on_line: Callable[[str, str], None] | None = None
    """Is given what they print; without it they print where we do."""
    on_death: Callable[[int, str], Awaitable[None]] | None = None
    """Is given the process id of a child that failed, and how it ended, before it is started again."""
    silence: float = SILENCE
    """A child that shows no sign of life for so many seconds is killed."""
    run_child: Callable[[ChildSpec], int] | None = None
    """Runs a child in a copy of this process; None to start a new Python for each child."""
    stopping: bool = False
    stop_requested: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    children: dict[str, Child] = {}
    started: set[str] = set()
    """The children that have said that they work: what ends them afterwards is no mistake in how they are started."""
    heard: set[str] = set()
    """The children that show signs of life, and so say themselves when they work."""
    failed: bool = False
    threads: ForkExecutor | None = None
    crash_memories: dict[str, int] = {}
    """The memory in which each child notes the calls that it makes, for the one after it."""

    def stop(self) -> None:
        """Ask all children to end; a second call makes them hurry."""
        if not self.stopping:
            self.stopping = True
            self.stop_requested.set()
            for spec in self.specs:
                grace = self.grace if spec.grace is None else spec.grace
                asyncio.get_running_loop().call_later(grace + KILL_MARGIN, self._kill, spec.name)
        for child in self.children.values():
            _signal(child, signal.SIGTERM)

    async def run(self) -> int:
        """Keep the children running until asked to stop; returns 0 if no child failed."""
        if self.run_child is not None and CAN_COPY:
            self.threads = ForkExecutor()
            asyncio.get_running_loop().set_default_executor(self.threads)
            prepare_copies()
        try:
            async with asyncio.TaskGroup() as group:
                for spec in self.specs:
                    group.create_task(self._keep_running(spec), name=spec.name)
        finally:
            while self.crash_memories:
                os.close(self.crash_memories.popitem()[1])
        return 1 if self.failed else 0

    async def _keep_running(self, spec: ChildSpec) -> None:
        loop = asyncio.get_running_loop()
        stable, deaths = False, 0
        while not self.stopping:
            born = loop.time()
            status = await self.live(spec)
            if self.stopping:
                if status not in (0, -signal.SIGTERM):
                    self.failed = True
                    log.error("did not stop well", role=spec.name, why=describe_exit(status))
                return
            lived_long = loop.time() - born >= SETTLED
            # One that is misconfigured was only slow to find out, and so was one of ours that has never worked.
            has_started = spec.name in self.started or (lived_long and spec.name not in self.heard)
            stable = stable or (has_started and status != EXIT_MISCONFIGURED)
            if lived_long and stable:
                deaths = 0
            deaths += 1
            # A process that died in user code has started, and the next one will do without that call.
            is_in_call = died_in_call(self.crash_memories[spec.name])
            stable = stable or is_in_call
            if not stable and should_give_up(status, deaths):
                self.failed = True
                log.error("cannot be started: giving up", role=spec.name, why=describe_exit(status))
                self.stop()
                return
            pause = min(pause_after(deaths), LONGEST_PAUSE_FOR_CALLS if is_in_call else LONGEST_PAUSE)
            log.warning("starting again", role=spec.name, why=describe_exit(status), after=f"{pause:g}s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.stop_requested.wait()

    async def live(self, spec: ChildSpec) -> int:
        """One life of a child, from start to end; whatever it leaves behind is ended with it."""
        reading, writing = os.pipe() if self.on_line else (None, None)
        heard, sign = os.pipe()
        os.set_blocking(heard, False)
        if spec.name not in self.crash_memories:
            self.crash_memories[spec.name] = make_crash_memory()
        memory = self.crash_memories[spec.name]
        every = min(SIGN_SECONDS, self.silence / SIGNS)
        helpers = None if self.threads is None else ForkService(self._can_copy)
        files = (sign, memory) if helpers is None else (sign, memory, helpers.theirs.fileno())
        setup = f"{os.getpid()}:{'pipe' if self.on_line else 'own'}:{every}:{':'.join(map(str, files))}"
        try:
            child = await self._start(spec, {**spec.environment, VARIABLE: setup}, writing, (*files, *spec.files))
        except BaseException:
            os.close(heard)
            if helpers is not None:
                helpers.close()
            raise
        finally:
            os.close(sign)
            if writing is not None:
                os.close(writing)
        self.children[spec.name] = child
        listening = asyncio.ensure_future(self._listen(spec.name, reading))
        watching = asyncio.ensure_future(self._watch(spec.name, child, heard))
        try:
            if self.stopping:
                _signal(child, signal.SIGTERM)
            status = await child.wait()
            self._hear(spec.name, heard)
            if status != 0 and self.on_death is not None:
                await self.on_death(child.pid, describe_exit(status))
            return status
        finally:
            kill_group(child.pid)
            if helpers is not None:
                helpers.close()
            del self.children[spec.name]
            watching.cancel()
            os.close(heard)
            await asyncio.wait([listening], timeout=1.0)
            listening.cancel()

    def _can_copy(self) -> bool:
        return self.threads is not None and self.threads.is_idle

    async def _start(
        self, spec: ChildSpec, environment: Mapping[str, str], output: int | None, files: tuple[int, ...]
    ) -> Child:
        """A child, as a copy of this process if that is possible now."""
        if (run := self.run_child) is not None and self.threads is not None:
            title = ("tidemill", *spec.command[len(PYTHON) :])
            given = {"title": title, "environment": environment, "output": output, "files": files}
            copy = await start_copy(lambda: run(spec), can_copy=self._can_copy, **given)
            if copy is not None:
                return copy
        return await asyncio.create_subprocess_exec(
            *spec.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=files,
            env={**os.environ, **environment},
        )

    async def _watch(self, name: str, child: Child, heard: int) -> None:
        """Kill a child that shows no more signs of life. One that has never shown any is not asked for them."""
        is_ours, silent = False, 0
        while silent <= LOOKS:  # Looks are counted, and not seconds: this process may have been suspended itself.
            await asyncio.sleep(self.silence / LOOKS)
            is_alive = self._hear(name, heard)
            is_ours = is_ours or is_alive
            silent = 0 if is_alive or not is_ours else silent + 1
        log.error("SILENT PROCESS: it is stopped, or blocked by its code; killing it", role=name, pid=child.pid)
        kill_group(child.pid)

    def _hear(self, name: str, heard: int) -> bool:
        """Read the signs of a child since the last look; returns whether there are any."""
        try:
            signs = os.read(heard, LINE_LIMIT)
        except BlockingIOError:
            return False
        if signs:
            self.heard.add(name)
        if STARTED in signs:
            self.started.add(name)
        return bool(signs)

    async def _listen(self, name: str, reading: int | None) -> None:
        """Pass on what a child prints, line by line, however long the lines are."""
        if reading is None or self.on_line is None:
            return
        reader = asyncio.StreamReader()
        pipe = os.fdopen(reading, "rb", buffering=0)
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        try:
            rest = b""
            while chunk := await reader.read(LINE_LIMIT):
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LINE_LIMIT:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self.on_line(name, line.decode(errors="replace"))
            if rest:
                self.on_line(name, rest.decode(errors="replace"))
        finally:
            transport.close()

    def _kill(self, name: str) -> None:
        child = self.children.get(name)
        if child is not None:
            log.error("did not stop in time: killing it", role=name, pid=child.pid)
            kill_group(child.pid)


def pause_after(deaths: int) -> float:
    """How long to wait before a start, after this many deaths in a row."""
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (deaths - 1))


def should_give_up(status: int, deaths: int) -> bool:
    """Whether a child that has never started is not worth another try. Watchdogs and signals prove that it ran."""
    if status in (EXIT_MISCONFIGURED, EXIT_USAGE):
        return True
    return status > 0 and status not in EXITS and deaths >= TRIES


def describe_exit(status: int) -> str:
    """An exit status in words."""
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-status).name}"
        return f"it was killed by signal {-status}"
    return f"{EXITS[status]} (exit {status})" if status in EXITS else f"it failed (exit {status})"


class Supervised(msgspec.Struct, frozen=True):
    """What a child knows of its supervisor: whether it reads what the child prints."""

    piped: bool


def end_with_supervisor() -> Supervised | None:
    """In a child, at its start: end with the supervisor from now on. None where there is no supervisor."""
    setup = os.environ.pop(VARIABLE, "")
    if not setup:
        return None
    parent, output, every, sign, memory, *asking = setup.split(":")
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        raise SystemExit(0)  # It was gone before we asked.
    ask_supervisor_at(int(asking[0]) if asking else None)
    os.set_inheritable(int(sign), False)
    inherit_crash_record(int(memory))
    os.close(int(memory))
    global _sign
    _sign = int(sign)
    signs = (int(sign), float(every))
    threading.Thread(target=_show_signs_of_life, args=signs, name="tidemill-sign", daemon=True).start()
    return Supervised(piped=output == "pipe")


def report_started() -> None:
    """In a child, when its role works: what ends it from now on is not how it was started."""
    if _sign is not None:
        with contextlib.suppress(OSError):
            os.write(_sign, STARTED)


def _show_signs_of_life(sign: int, every: float) -> None:
    while True:
        try:
            os.write(sign, ALIVE)
        except OSError:  # The supervisor is gone, and so is this process in a moment.
            return
        time.sleep(every)


def _signal(child: Child, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        child.send_signal(number)
