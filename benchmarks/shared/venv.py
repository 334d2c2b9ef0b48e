"""The peers' own virtual environment, so that none of them can change what we depend on."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DIRECTORY = ROOT / ".bench" / "venv"
PYTHON = DIRECTORY / "bin" / "python"
REQUIREMENTS = ROOT / "benchmarks" / "peers" / "requirements.txt"
INSTALL_TIMEOUT_S = 300


def ensure() -> None:
    """Create the venv and install what `peers/requirements.txt` pins, unless that has been done already.

    Each peer is installed by itself: one that cannot be had here costs only its own rows.
    """
    wanted = REQUIREMENTS.read_text()
    stamp = DIRECTORY / "installed-peers.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    _say("creating .bench/venv for the peers")
    subprocess.run([sys.executable, "-m", "venv", str(DIRECTORY)], check=True, timeout=INSTALL_TIMEOUT_S)
    for line in wanted.splitlines():
        if line and not line.startswith("#"):
            _install(line)
    stamp.write_text(wanted)


def _install(requirement: str) -> None:
    _say(f"installing {requirement}")
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        _say(f"{requirement}: not installed within {INSTALL_TIMEOUT_S} s")
        return
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        _say(f"{requirement}: not installed: {lines[-1] if lines else 'pip gave no reason'}")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
