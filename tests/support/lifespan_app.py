"""An application with a lifespan, whose functions run in child processes.

LIFESPAN_LOG   the file that the lifespan notes every opening and closing in
LIFESPAN_AWAY  a file; while it exists, the lifespan fails
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidemill import INJECTED, App, Invocation
from tidemill.sources import LogSource
from tidemill.streams import Context, Plan, Stream, task


class Client:
    """What every process opens once."""

    def __init__(self) -> None:
        self.pid = os.getpid()


def note(text: str) -> None:
    """Append a line to the log."""
    with open(os.environ["LIFESPAN_LOG"], "a") as file:
        file.write(f"{text} {os.getpid()}\n")


@contextmanager
def lifespan(app: App) -> Iterator[Client]:
    """Open the client, unless the service is away."""
    if Path(os.environ.get("LIFESPAN_AWAY", "")).is_file():
        raise ConnectionError("the service is away")
    note("open")
    yield Client()
    note("close")


@contextmanager
def noted(call: Invocation) -> Iterator[None]:
    """Note every call."""
    yield
    note(f"{call.shape} {call.name}")


app = App("lifespan", lifespan=lifespan, middleware=[noted])


@app.task(isolation="process", queue="isolated")
def where(client: Client = INJECTED) -> dict:
    """The process of the client, and that of the task."""
    return {"client": client.pid, "task": os.getpid()}


class Noting(Plan, eligibility="note"):
    """Notes messages."""

    @task
    async def note(self, ctx: Context, client: Client = INJECTED) -> None:
        note(f"message of {client.pid} in")


app.stream(Stream("notes", sources=[LogSource("notes", eligibilities={"note"})], plans=[Noting], engines=1))
