"""Programs in a network of their own: with addresses of other machines, a DNS server that may lie, and nothing else.

`in_private_network(program)` runs a file of Python with namespaces of its own; there `network()` gives it the DNS.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SET_ADDRESS, GET_FLAGS, SET_FLAGS = 0x8916, 0x8913, 0x8914


def in_private_network(program: Path) -> Any:
    """What a program prints as JSON; the test is skipped where the system allows no namespaces."""
    enter = ["unshare", "--map-root-user", "--net", "--mount"]
    if subprocess.run([*enter, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system allows no network namespaces")
    plain = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    told = subprocess.run([*enter, sys.executable, program], capture_output=True, text=True, timeout=150, env=plain)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


class Names:
    """The answers of the DNS server: a name's addresses now, or one list after the other."""

    def __init__(self) -> None:
        self.known: dict[str, list[Sequence[str]]] = {}
        self.asked: list[str] = []

    def tell(self, name: str, *answers: Sequence[str]) -> None:
        """Each question gets the next answer; the last one stays."""
        self.known[name] = list(answers)

    def answer(self, question: bytes) -> bytes:
        at, labels = 12, []
        while length := question[at]:
            labels.append(question[at + 1 : at + 1 + length].decode())
            at += 1 + length
        name, kind = ".".join(labels), struct.unpack("!H", question[at + 1 : at + 3])[0]
        found: Sequence[str] = ()
        if kind == 1:
            self.asked.append(name)
            answers = self.known.get(name, [()])
            found = answers.pop(0) if len(answers) > 1 else answers[0]
        records = b"".join(struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(each) for each in found)
        code = 0x8180 if name in self.known else 0x8183
        return question[:2] + struct.pack("!HHHHH", code, 1, len(found), 0, 0) + question[12 : at + 5] + records


@contextmanager
def network(*addresses: str) -> Iterator[Names]:
    """The loopback device with further addresses, and the resolver of this namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        flags = struct.unpack("16sh", fcntl.ioctl(control, GET_FLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(control, SET_FLAGS, struct.pack("16sh", b"lo", flags | 1))
        for number, address in enumerate(addresses):
            device, place = f"lo:{number + 1}".encode(), socket.inet_aton(address)
            request = struct.pack("16sH2s4s8s", device, socket.AF_INET, b"", place, b"")
            fcntl.ioctl(control, SET_ADDRESS, request)
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        for file, text in (("resolv.conf", "nameserver 127.0.0.1\n"), ("nsswitch.conf", "hosts: files dns\n")):
            Path(folder, file).write_text(text)
            subprocess.run(["mount", "--bind", f"{folder}/{file}", Path("/etc", file).resolve()], check=True)
        server.bind(("127.0.0.1", 53))
        names = Names()

        def serve() -> None:
            while True:
                question, sender = server.recvfrom(512)
                server.sendto(names.answer(question), sender)

        threading.Thread(target=serve, daemon=True).start()
        yield names
