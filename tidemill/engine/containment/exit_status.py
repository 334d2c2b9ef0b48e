"""The exit statuses of processes that end themselves, and what they mean."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

EXIT_USAGE = 2  # a command that was not understood
EXIT_FENCED = 70
EXIT_BUDGET = 75
EXIT_STALL = 76
EXIT_CANCEL = 77
EXIT_MISCONFIGURED = 78
EXIT_BLOCKED = 79

EXITS: Mapping[int, str] = {
    0: "it ended by itself",
    EXIT_FENCED: "it was silent for longer than its lease and others took over its jobs",
    EXIT_BUDGET: "the watchdog ended it: a job ran longer than its budget",
    EXIT_STALL: "the watchdog ended it: a job showed no sign of life",
    EXIT_CANCEL: "the watchdog ended it: a job did not end that its run no longer needs",
    EXIT_MISCONFIGURED: "it cannot start as it is configured",
    EXIT_BLOCKED: "the watchdog ended it: its event loop was blocked",
}


def exit_now(status: int) -> None:
    """End the process without waiting for its threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
