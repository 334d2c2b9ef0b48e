"""What tests share: a database of their own, roles that run while a block lasts, real processes, and patience.

async with running_maintenance(app), running_worker(app, ["mail"]) as worker:
    job = await app.enqueue(send.call(to="a"))
    row = await finished(database, job.id)

Tests wait on conditions (`eventually`), never on time.
"""

from tests.support.processes import AppProcess, run_worker_process, scheduler_process, worker_process
from tests.support.puppet import Puppet, ending, puppet
from tests.support.roles import running_maintenance, running_scheduler, running_worker
from tests.support.rows import (
    attempts_of,
    find_history,
    find_live,
    find_worker,
    finished,
    held_by,
    lapse,
    locked_out,
    open_gate,
    running,
    value,
)
from tests.support.waiting import eventually

__all__ = [
    "AppProcess",
    "Puppet",
    "attempts_of",
    "ending",
    "eventually",
    "find_history",
    "find_live",
    "find_worker",
    "finished",
    "held_by",
    "lapse",
    "locked_out",
    "open_gate",
    "puppet",
    "run_worker_process",
    "running",
    "running_maintenance",
    "running_scheduler",
    "running_worker",
    "scheduler_process",
    "value",
    "worker_process",
]
