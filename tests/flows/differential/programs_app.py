"""The application of run workers that run random programs: its workflows are the programs of a file.

TIDEMILL_PROGRAMS   the file, written by `write_programs`
TIDEMILL_IDLE       how long a run that only waits stays in the memory of its process
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path

from tests.flows.differential.building import build
from tests.flows.differential.dialects import Dialect, ours
from tests.flows.differential.programs import Program
from tidemill import App
from tidemill.engine.runs import durable_run


def write_programs(file: Path, programs: Sequence[Program]) -> None:
    file.write_bytes(pickle.dumps(list(programs)))


def declare(app: App, programs: Sequence[Program], dialect: Dialect) -> None:
    """Declare each program as a workflow: `Program0`, `Program1`, and so on."""
    for number, program in enumerate(programs):
        app.workflow(build(program, dialect)(timeout=None), name=f"Program{number}")


app = App("test")
if "TIDEMILL_PROGRAMS" in os.environ:
    declare(app, pickle.loads(Path(os.environ["TIDEMILL_PROGRAMS"]).read_bytes()), ours())
    durable_run.IDLE_BEFORE_RELEASE = float(os.environ["TIDEMILL_IDLE"])
