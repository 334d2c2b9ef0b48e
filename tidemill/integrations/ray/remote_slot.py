"""The Ray task of a slot: connects to its worker, and runs the jobs that come over the connection, one at a time."""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from contextvars import copy_context
from functools import lru_cache

import msgspec

from tidemill.core.codec import decode, encode
from tidemill.declarations import Declarations
from tidemill.engine.application.connections import SyncBridge
from tidemill.engine.application.load_app import load_app
from tidemill.engine.application.workflow_access import grant_access
from tidemill.engine.telemetry.logs import configure_logs
from tidemill.engine.worker.isolated_child import OrderedJobs
from tidemill.engine.worker.isolation import ChildOrder, ChildReport
from tidemill.store.connection.setup import enable_keepalives

SIZE_BYTES = 4  # Each message is preceded by its length.
CONNECT_SECONDS = 30.0


class SlotHello(msgspec.Struct, array_like=True):
    """The first message of a slot: the secret of its worker, and which slot it is."""

    secret: str
    slot: int


class WorkerUnreachable(Exception):
    """A node of the cluster cannot connect to the worker."""


def run_slot(app_path: str, address: tuple[str, int], hello: bytes) -> None:
    """Run jobs until the worker closes the connection."""
    declared, jobs = _application(app_path)
    with _connect(address) as connection:
        with suppress(OSError):  # Reading says that the connection is lost.
            connection.sendall(framed(hello))
        reports = SlotReports(connection)
        while (data := _read_message(connection)) is not None:
            context = copy_context()
            context.run(grant_access, declared.settings, declared.connections.unopened)
            context.run(jobs.run, decode(data, ChildOrder), reports.begin())


class SlotReports:
    """Sends what jobs report. A job may report from several threads, and one of them may outlive it."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._job = 0

    def begin(self) -> JobReports:
        """The reports of the next job; those of the job before are dropped from now on."""
        with self._sending:
            self._job += 1
        return JobReports(self, self._job)

    def send(self, job: int, report: ChildReport) -> None:
        with self._sending:
            if job == self._job:
                with suppress(OSError):  # A lost connection is no error of the task: the worker ends the slot.
                    self._connection.sendall(framed(encode(report)))
                self._job += report.is_outcome  # Nothing follows an outcome.


class JobReports:
    """The reports of one job."""

    def __init__(self, reports: SlotReports, job: int) -> None:
        self._reports = reports
        self._job = job

    def __call__(self, report: ChildReport) -> None:
        self._reports.send(self._job, report)


def framed(data: bytes) -> bytes:
    """A message as it travels."""
    return len(data).to_bytes(SIZE_BYTES) + data


def _connect(address: tuple[str, int]) -> socket.socket:
    host, port = address
    try:
        connection = socket.create_connection(address, CONNECT_SECONDS)
    except OSError as error:
        node = socket.gethostname()
        raise WorkerUnreachable(
            f"{node} in the Ray cluster cannot connect to the worker at {host}:{port}: {error}"
        ) from error
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    enable_keepalives(connection)
    return connection


def _read_message(connection: socket.socket) -> bytes | None:
    """The next message; None if the connection was closed or lost."""
    size = _read_exactly(connection, SIZE_BYTES)
    return None if size is None else _read_exactly(connection, int.from_bytes(size))


def _read_exactly(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return bytes(data)


@lru_cache(maxsize=1)
def _application(app_path: str) -> tuple[Declarations, OrderedJobs]:
    """The application, loaded once per process of the cluster, with one event loop for its async tasks."""
    app = load_app(app_path)
    app.declarations.hash_stages()
    configure_logs(app.settings.log_level, app.settings.log_format)
    declared: Declarations = app.declarations
    return declared, OrderedJobs(declared.tasks, declared.lifespan, ExitStack(), SyncBridge().call)
