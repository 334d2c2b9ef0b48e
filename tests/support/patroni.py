"""A Patroni cluster of two PostgreSQL servers with etcd, in synchronous mode, and HAProxy in front of it.

Patroni runs as the servers' user, with a Python that this user can read: on PATH, or in /opt/patroni.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.support.external import find_binaries, private_folder, unprivileged
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, eventually

#: Seconds after which a member that is silent is no longer the primary. Patroni allows no less.
TTL = 20

PASSWORD = "patroni"


def find_program(name: str, package: str, *places: str) -> str:
    """Where a program is, or a skipped test."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *places]))
    if found is None:
        pytest.skip(f"no {name} on this machine: {package}")
    return found


class Member:
    """One server of the cluster and the Patroni that drives it."""

    def __init__(self, name: str, program: str, folder: Path, etcd: int) -> None:
        self.name = name
        self.port, self.api = free_port(), free_port()
        self._program = program
        self._folder = folder
        self._etcd = etcd
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start Patroni, which starts the server."""
        file = self._folder / f"{self.name}.yml"
        file.write_text(json.dumps(self._settings()))  # JSON is YAML.
        file.chmod(0o644)
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(  # pyright: ignore[reportCallIssue]
                [self._program, str(file)],
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **unprivileged(),  # pyright: ignore[reportArgumentType]
            )

    def kill(self) -> None:
        """End Patroni and its server at once, as a host that loses power does."""
        if self._process is None:
            return
        postmaster = self._folder / self.name / "postmaster.pid"
        pids = [self._process.pid]
        if postmaster.exists():
            pids.append(int(postmaster.read_text().split()[0]))
        children = {pid: _children(pid) for pid in pids}
        for pid in [*pids, *(child for found in children.values() for child in found)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._process = None

    def check(self) -> None:
        """Fail if its Patroni has ended by itself."""
        assert self._process is None or self._process.poll() is None, f"Patroni {self.name} ended:\n{self.said()}"

    def said(self) -> str:
        return (self._folder / f"{self.name}.log").read_text(errors="replace")[-5000:]

    def cluster(self) -> list[dict[str, Any]]:
        """The members, as this one sees them."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.api}/cluster", timeout=2) as answer:
                return json.load(answer)["members"]
        except (OSError, urllib.error.URLError, ValueError):
            return []

    def _settings(self) -> dict[str, Any]:
        local = f"127.0.0.1:{self.port}"
        login = {"username": "postgres", "password": PASSWORD}
        return {
            "scope": "tidemill",
            "name": self.name,
            "restapi": {"listen": f"127.0.0.1:{self.api}", "connect_address": f"127.0.0.1:{self.api}"},
            "etcd3": {"hosts": f"127.0.0.1:{self._etcd}"},
            "bootstrap": {
                "dcs": {
                    "ttl": TTL,
                    "loop_wait": 1,
                    "retry_timeout": 5,
                    "synchronous_mode": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": 200, "wal_keep_size": "512MB", "wal_log_hints": "on"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, "data-checksums"],
            },
            "postgresql": {
                "listen": local,
                "connect_address": local,
                "data_dir": str(self._folder / self.name),
                "bin_dir": str(find_binaries()),
                "pgpass": str(self._folder / f"{self.name}.pgpass"),
                "authentication": {"superuser": login, "replication": login, "rewind": login},
                "parameters": {"unix_socket_directories": str(self._folder)},
                "pg_hba": [
                    "host all all 127.0.0.1/32 scram-sha-256",
                    "host replication all 127.0.0.1/32 scram-sha-256",
                ],
            },
        }


def _children(pid: int) -> list[int]:
    """The processes that a process has started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


class Cluster:
    """Two members, of which one is the primary."""

    def __init__(self, members: list[Member], proxy: int) -> None:
        self.members = members
        self._proxy = proxy

    @property
    def proxy_url(self) -> str:
        """The one address of the primary."""
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{self._proxy}/postgres"

    @property
    def hosts_url(self) -> str:
        """All hosts in one URL."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"postgresql://postgres:{PASSWORD}@{hosts}/postgres?target_session_attrs=primary"

    def url(self, member: Member) -> str:
        return f"postgresql://postgres:{PASSWORD}@127.0.0.1:{member.port}/postgres"

    async def is_synchronous(self) -> bool:
        """Whether there is a primary, and a standby without which it acknowledges nothing."""
        for member in self.members:
            member.check()
        seen = [await asyncio.to_thread(member.cluster) for member in self.members]
        return any(sorted(each["role"] for each in found) == ["leader", "sync_standby"] for found in seen) and all(
            each["state"] in ("running", "streaming") for found in seen for each in found
        )

    async def wait_synchronous(self) -> None:
        try:
            await eventually(self.is_synchronous, timeout=2 * PATIENCE, what="the standby is synchronous")
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(f"== {m.name}\n{m.said()}" for m in self.members)) from None

    async def primary(self) -> Member:
        """The member that takes writes."""

        async def find() -> Member | None:
            for member in self.members:
                if await self._is_primary(member):
                    return member
            return None

        return await eventually(find, what="there is a primary")

    async def kill_primary(self) -> tuple[Member, float]:
        """Kill the primary with its Patroni; returns it, and when the other one was promoted."""
        killed = await self.primary()
        (other,) = (member for member in self.members if member is not killed)
        killed.kill()
        await eventually(lambda: self._is_primary(other), what=f"{other.name} is promoted")
        return killed, time.time()

    async def _is_primary(self, member: Member) -> bool:
        try:
            connection = await asyncpg.connect(self.url(member), timeout=5)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        try:
            return not await connection.fetchval("SELECT pg_is_in_recovery()")
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return False
        finally:
            connection.terminate()


@asynccontextmanager
async def patroni_cluster() -> AsyncIterator[Cluster]:
    """A cluster whose standby is synchronous; skipped where a program is missing."""
    patroni = find_program("patroni", "see .ci/run", "/opt/patroni/bin")
    etcd = find_program("etcd", "apt-get install etcd-server")
    haproxy = find_program("haproxy", "apt-get install haproxy")
    find_binaries()
    with private_folder() as folder:
        folder.chmod(0o755)
        client, peer, proxy = free_port(), free_port(), free_port()
        members = [Member(name, patroni, folder, client) for name in ("one", "two")]
        urls = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
        options = {
            "data-dir": str(folder / "etcd"),
            "listen-client-urls": urls[0],
            "advertise-client-urls": urls[0],
            "listen-peer-urls": urls[1],
            "initial-advertise-peer-urls": urls[1],
            "initial-cluster": f"default={urls[1]}",
        }
        checked = "\n".join(
            f"    server {m.name} 127.0.0.1:{m.port} check port {m.api} on-marked-down shutdown-sessions"
            for m in members
        )
        (folder / "haproxy.cfg").write_text(f"""
global
    maxconn 500
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
    timeout check 2s
listen primary
    bind 127.0.0.1:{proxy}
    option httpchk GET /primary
    http-check expect status 200
    default-server inter 500ms fall 2 rise 1
{checked}
""")
        commands = (
            [etcd, *(f"--{name}={value}" for name, value in options.items())],
            [haproxy, "-db", "-f", str(folder / "haproxy.cfg")],
        )
        try:
            with _programs(folder, *commands):
                for member in members:
                    member.start()
                cluster = Cluster(members, proxy)
                await cluster.wait_synchronous()
                yield cluster
        finally:
            for member in members:
                member.kill()


@contextmanager
def _programs(folder: Path, *commands: list[str]) -> Any:
    """Programs that end with the block."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / f"{Path(command[0]).name}.log").open("wb") as log:
                running.append(
                    subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, **unprivileged())  # pyright: ignore[reportCallIssue, reportArgumentType]
                )
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
