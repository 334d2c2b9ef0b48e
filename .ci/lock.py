"""Writes `requirements.lock`: the pins of `constraints.txt` with the hashes of all their files, for pip to check.

    python .ci/lock.py                                        after a change of constraints.txt
    pip install --require-hashes -r requirements.lock         installs exactly these files, and no others
    pip install --no-deps -e .

The hashes come from the index that pip is configured to use; its address is not written down. They are not in
`constraints.txt`, because pip then refuses everything without a hash, also the project itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pip._internal.models.index import PyPI

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)\s*(?:;\s*(.*))?")


def pins() -> list[tuple[str, str, str]]:
    """Name, version and marker of every pin."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = [_PIN.fullmatch(line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    return [(pin[1], pin[2], (pin[3] or "").strip()) for pin in found if pin is not None]


def index() -> str:
    """The index that pip uses."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    told = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return (told or os.environ.get("PIP_INDEX_URL") or PyPI.simple_url).rstrip("/")


def hashes(base: str, name: str, version: str) -> list[str]:
    """The hashes of all files of a version."""
    page = re.sub(r"[-_.]+", "-", name).lower()
    with urllib.request.urlopen(f"{base}/{page}/", timeout=60) as answer:  # noqa: S310 - the index of pip
        text = answer.read().decode()
    stem = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace(r"\-", "-").replace(r"\.", "."))
    file = rf"(?i:/|>|\"){stem}-{re.escape(version)}(?:-[^\"/#<>]*\.whl|\.tar\.gz|\.zip)#sha256=([0-9a-f]{{64}})"
    found = sorted(set(re.findall(file, text)))
    if not found:
        raise SystemExit(f"the index has no file of {name} {version} with a hash")
    return found


def main() -> None:
    base, wanted = index(), pins()
    with ThreadPoolExecutor(8) as pool:
        known = list(pool.map(lambda pin: hashes(base, pin[0], pin[1]), wanted))
    lines = []
    for (name, version, marker), each in zip(wanted, known, strict=True):
        told = " \\\n".join(f"    --hash=sha256:{digest}" for digest in each)
        lines.append(f"{name}=={version}{f' ; {marker}' if marker else ''} \\\n{told}\n")
    (ROOT / "requirements.lock").write_text("".join(lines))


if __name__ == "__main__":
    main()
