"""Run a program of the user's, with a time limit.

Its input and outputs are files, not pipes: it may end without reading its input, and pipes would keep the caller
waiting for all that it has started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec


class CommandResult(msgspec.Struct, frozen=True):
    status: int
    output: bytes
    errors: bytes


async def run_external_command(
    argv: Sequence[str],
    given: bytes,
    *,
    timeout: float,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    keeps_output: bool = True,
    most_errors: int | None = None,
) -> CommandResult:
    """Run a program to its end, and read its output and the last `most_errors` bytes of its errors, or all.

    If it takes too long (TimeoutError) or the caller is cancelled, it is killed with all that it has started.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        stdin.write(given)
        stdin.seek(0)
        output = stdout if keeps_output else asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=output, stderr=stderr, cwd=cwd, env=env, start_new_session=True
        )
        try:
            async with asyncio.timeout(timeout):
                status = await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        stdout.seek(0)
        stderr.seek(0 if most_errors is None else max(0, stderr.seek(0, os.SEEK_END) - most_errors))
        return CommandResult(status, stdout.read(), stderr.read())
