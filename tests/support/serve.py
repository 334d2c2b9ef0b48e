"""A process of a test: `python -m tests.support.serve worker[:QUEUE,...]|run worker|scheduler APP`.

Does what the command line of Tidemill does for one role and nothing more: prints READY and its worker id when it
works, stops at SIGTERM, and ends with `EXIT_FENCED` when its lease was taken from it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from typing import NoReturn

from tidemill.core.errors import LeaseLostError
from tidemill.engine.application.load_app import load_app
from tidemill.engine.containment.exit_status import EXIT_FENCED
from tidemill.engine.roles.role import Role
from tidemill.engine.roles.scheduler import Scheduler
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.roles import jobs_role, monitors_role, runs_role

PR_SET_PDEATHSIG = 1


async def serve(role: str, path: str) -> NoReturn:
    app = load_app(path)
    kind, _, queues = role.partition(":")
    if kind == "worker":
        living = jobs_role(app.declarations, queues.split(",") if queues else None)
    elif kind == "runs":
        living = runs_role(app.declarations)
    elif kind == "monitor":
        living = monitors_role(app.declarations)
    else:
        database = app.database()
        living = Role(Scheduler(database, app.declarations.stored_schedules()), database)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, living.stop)
    life = asyncio.create_task(living.run())
    ready = asyncio.create_task(living.wait_ready())
    await asyncio.wait([life, ready], return_when=asyncio.FIRST_COMPLETED)
    if ready.done():
        print("READY", living.worker_id, flush=True)
    try:
        await life
    except LeaseLostError as error:
        print(error, flush=True)
        leave(EXIT_FENCED)
    leave(0)


def leave(status: int) -> NoReturn:
    """Exit, though a thread or a task may be busy with something that was given back."""
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    configure_logs("info", "human")
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
