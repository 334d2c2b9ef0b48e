"""Audits what Tidemill depends on: `python .ci/audit.py`, a part of `make lint`.

1. Licences, from the installed packages' own metadata and `web/package-lock.json`: never GPL or AGPL; what is installed
   with Tidemill itself is not LGPL either.
2. Pins: whatever Tidemill requires, directly or not, has its version in `constraints.txt`.
3. Known vulnerabilities of those versions, in one question to the public database OSV. Where that cannot be reached it
   says so and goes on: a machine without a network can still check everything else.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DATABASE = "https://api.osv.dev/v1/querybatch"
PATIENCE = 10.0

_FORBIDDEN = re.compile(r"(?<![A-Za-z])A?GPL|Affero|(?<!Lesser )General Public", re.IGNORECASE)
#: Packages whose licence names one that is forbidden, for a file that they do not install.
EXEMPT = {"docutils": "public domain and BSD; only its mode for Emacs is GPL"}
_LESSER = re.compile(r"LGPL|Lesser General Public", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Package(NamedTuple):
    """One package as it is pinned: `ecosystem` is PyPI or npm."""

    ecosystem: str
    name: str
    version: str


def plain(name: str) -> str:
    """A package's name as everybody spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(text: str) -> dict[str, str]:
    """The versions of a constraints file, by name."""
    pairs = (line.split(";")[0].strip().partition("==") for line in text.splitlines() if "==" in line)
    return {plain(name): version.strip() for name, _, version in pairs}


def needed(root: str) -> dict[str, Distribution]:
    """Everything that is installed because of a package, itself left out: its extras as far as they are there."""
    found: dict[str, Distribution] = {}
    open_names = [root]
    while open_names:
        name = open_names.pop()
        try:
            known = distribution(name)
        except PackageNotFoundError:
            continue  # Of another platform, or of an extra that is not installed.
        for text in known.requires or ():
            if name != root and "extra ==" in text:
                continue
            if name == root and any(f'extra == "{extra}"' in text.replace("'", '"') for extra in ("dev", "docs")):
                continue
            match = _NAME.match(text)
            if match and plain(match[0]) not in found:
                try:
                    found[plain(match[0])] = distribution(match[0])
                except PackageNotFoundError:
                    continue
                open_names.append(match[0])
    return found


def licence_of(package: Distribution) -> str:
    """What a package says of its licence."""
    told = package.metadata
    classifiers = [each for each in told.get_all("Classifier") or () if each.startswith("License ::")]
    text = (told.get("License") or "").strip().splitlines()
    return " ".join([told.get("License-Expression") or "", *text[:1], *classifiers]).strip()


def wrong_licences(licences: Iterable[tuple[str, str]], *, lesser_too: bool) -> list[str]:
    """The packages among these whose licence will not do, with what it is."""
    return [
        f"{name}: {licence}"
        for name, licence in licences
        if _FORBIDDEN.search(_LESSER.sub("", licence)) or (lesser_too and _LESSER.search(licence))
    ]


def read_lock(text: str) -> tuple[list[Package], list[tuple[str, str]]]:
    """The packages of a package-lock.json, and the licence of each."""
    entries: Mapping[str, dict[str, object]] = json.loads(text)["packages"]
    named = {path.rpartition("node_modules/")[2]: entry for path, entry in entries.items() if path}
    packages = [Package("npm", name, str(entry["version"])) for name, entry in named.items() if "version" in entry]
    return packages, [(name, str(entry.get("license", ""))) for name, entry in named.items()]


def vulnerable(packages: list[Package], database: str = DATABASE) -> list[str]:
    """The packages with known vulnerabilities, each with their names. One question for all."""
    queries = [
        {"package": {"name": each.name, "ecosystem": each.ecosystem}, "version": each.version} for each in packages
    ]
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(database, body, {"content-type": "application/json"})  # noqa: S310 - our own
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - an address of our own
        results = json.load(answer)["results"]
    return [
        f"{package.name} {package.version}: {', '.join(each['id'] for each in found['vulns'])}"
        for package, found in zip(packages, results, strict=True)
        if found.get("vulns")
    ]


def main(database: str = DATABASE) -> int:
    """Audit this checkout; the number of things that are wrong."""
    pins = read_pins((ROOT / "constraints.txt").read_text())
    ours = needed("tidemill")
    locked, web_licences = read_lock((ROOT / "web" / "package-lock.json").read_text())
    everything = [
        (each.metadata["Name"], licence_of(each)) for each in distributions() if each.metadata["Name"] not in EXEMPT
    ]
    wrong = [f"licence of {each}" for each in wrong_licences(everything + web_licences, lesser_too=False)]
    installed = [(name, licence_of(each)) for name, each in ours.items()]
    wrong += [
        f"licence of {each}" for each in wrong_licences(installed, lesser_too=True) if f"licence of {each}" not in wrong
    ]
    wrong += [f"{name} is not pinned in constraints.txt" for name in sorted(ours) if name not in pins]
    packages = [Package("PyPI", name, version) for name, version in pins.items()] + locked
    try:
        wrong += [f"known vulnerability of {each}" for each in vulnerable(packages, database)]
        checked = f"known vulnerabilities of {len(packages)} packages"
    except (OSError, ValueError, KeyError) as error:
        why = error.reason if isinstance(error, urllib.error.URLError) else error
        print(f"audit: SKIPPED known vulnerabilities: {database} cannot be asked from here ({why})")
        checked = "vulnerabilities not looked up"
    for each in wrong:
        print(f"audit: {each}", file=sys.stderr)
    print(f"audit: {len(everything) + len(web_licences)} licences, {len(ours)} pins, {checked}: {len(wrong)} wrong")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
