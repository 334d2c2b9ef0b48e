"""The audit of dependencies finds what it is for, and a machine without a network is told and goes on."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

AUDIT = Path(__file__).resolve().parents[2] / ".ci" / "audit.py"


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", AUDIT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Answering(BaseHTTPRequestHandler):
    """Knows of one vulnerability."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
        results: list[dict[str, Any]] = [
            {"vulns": [{"id": "X-1"}]} if each["package"]["name"] == "leaky" else {} for each in asked
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def database() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answering)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_licences_that_bind_others_are_found(audit: ModuleType) -> None:
    told = [("good", "MIT"), ("bad", "AGPL-3.0-only"), ("old", "License :: OSI Approved :: GNU General Public License")]
    lesser = ("lesser", "GNU Lesser General Public License v3 (LGPLv3)")
    names = [each.partition(":")[0] for each in audit.wrong_licences([*told, lesser], lesser_too=False)]
    assert names == ["bad", "old"]
    assert len(audit.wrong_licences([lesser], lesser_too=True)) == 1


def test_a_known_vulnerability_is_told_with_its_name(audit: ModuleType, database: str) -> None:
    packages = [audit.Package("PyPI", "tight", "1"), audit.Package("npm", "leaky", "2.1")]
    assert audit.vulnerable(packages, database) == ["leaky 2.1: X-1"]


def test_without_a_network_it_says_so_and_checks_the_rest(
    audit: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:  # Bound and not listening: nobody answers there.
        taken.bind(("127.0.0.1", 0))
        assert audit.main(f"http://127.0.0.1:{taken.getsockname()[1]}") == 0
    said = capsys.readouterr().out
    assert "SKIPPED known vulnerabilities" in said
    assert "refused" in said


def test_pins_are_read_whatever_they_are_called(audit: ModuleType) -> None:
    assert audit.read_pins("PyYAML==6.0\nuvloop==0.2 ; sys_platform != 'win32'\n# no\n") == {
        "pyyaml": "6.0",
        "uvloop": "0.2",
    }


def test_lock_files_name_no_registry(audit: ModuleType) -> None:
    lock = (audit.ROOT / "web" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
    assert "://" not in lock
    assert "://" not in (audit.ROOT / "constraints.txt").read_text()


def test_nothing_that_is_generated_is_committed(audit: ModuleType) -> None:
    ran = subprocess.run(["git", "ls-files"], cwd=audit.ROOT, capture_output=True, text=True, check=True)
    generated = ("_pb2.py", "_pb2.pyi", "schema.d.ts", ".so")
    static = "tidemill/server/static/"
    assert [name for name in ran.stdout.split() if name.endswith(generated) or name.startswith(static)] == []


def test_the_lock_holds_the_pins_with_hashes_that_pip_checks(audit: ModuleType) -> None:
    lock = (audit.ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    entries = lock.replace("\\\n", " ").splitlines()
    assert all("--hash=sha256:" in entry for entry in entries)
    assert audit.read_pins("\n".join(entry.partition("--hash")[0] for entry in entries)) == audit.read_pins(
        (audit.ROOT / "constraints.txt").read_text()
    )
