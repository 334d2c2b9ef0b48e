"""`.manifest.json`: information about the states of a directory, for people and other programs.

Many processes may change one manifest: each locks the directory while it reads, changes and replaces it. A manifest is
changed after its files, so it never names a missing one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tidemill.pipelines.stores.base import MANIFEST, Manifest, ManifestEntry, StateStoreError


class _Texts(msgspec.Struct):
    """A manifest with undecoded entries: there may be many, and few of them change."""

    states: dict[str, msgspec.Raw] = {}


_decoder = msgspec.json.Decoder(Manifest)
_texts = msgspec.json.Decoder(_Texts)
_encode = msgspec.json.Encoder().encode


def entries_in(data: bytes, place: str) -> dict[str, ManifestEntry]:
    """The entries in a manifest's text."""
    try:
        return _decoder.decode(data).states
    except msgspec.DecodeError as error:
        raise StateStoreError(f"{place} cannot be read: {error}; delete it, and it is written again") from error


def changed_entries(data: bytes | None, changes: Mapping[str, ManifestEntry | None]) -> dict[str, msgspec.Raw]:
    """The encoded entries of a manifest after these changes. An unreadable manifest is replaced,
    because the database has the rest."""
    try:
        entries = {} if data is None else _texts.decode(data).states
    except msgspec.DecodeError:
        entries = {}
    is_sorted = True
    for name, entry in changes.items():
        if entry is None:
            entries.pop(name, None)
        else:
            is_sorted = is_sorted and name in entries
            entries[name] = msgspec.Raw(_indented(entry))
    return entries if is_sorted else {name: entries[name] for name in sorted(entries)}


def changed_manifest(data: bytes | None, changes: Mapping[str, ManifestEntry | None]) -> bytes:
    """A manifest's text after these changes."""
    return written(changed_entries(data, changes))


def written(entries: Mapping[str, msgspec.Raw]) -> bytes:
    """A manifest's text, joined from its encoded entries."""
    pieces: list[Any] = [b'{\n "states": {']
    for name, text in entries.items():
        pieces += (b"\n  ", _encode(name), b": ", text, b",")
    if entries:
        pieces.pop()
    pieces.append(b"\n }\n}")
    return b"".join(pieces)


def _indented(entry: ManifestEntry) -> bytes:
    return msgspec.json.format(_encode(entry), indent=1).replace(b"\n", b"\n  ")


def read_manifest(directory: Path) -> dict[str, ManifestEntry]:
    """The entries of a directory's manifest; empty if there is none."""
    data = _read(directory)
    return {} if data is None else entries_in(data, str(directory / MANIFEST))


def change_manifest(directory: Path, changes: Mapping[str, ManifestEntry | None]) -> None:
    """Add and remove entries; safe with concurrent writers."""
    with locked(directory):
        entries = changed_entries(_read(directory), changes)
        names = set(os.listdir(directory))
        for name in entries.keys() - names:
            del entries[name]
        for name in names:
            if name.startswith(f"{MANIFEST}.") and name.endswith(".tmp"):  # Its writer has died: the lock is ours.
                os.unlink(directory / name)
        text = written(entries)
        temporary = directory / f"{MANIFEST}.{os.getpid()}.tmp"
        try:
            with open(temporary, "wb") as opened:
                opened.write(text)
                opened.flush()
                os.fsync(opened.fileno())
            os.replace(temporary, directory / MANIFEST)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold an exclusive lock on a directory."""
    held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
        except OSError:  # Some network file systems lock only files that can be written.
            os.close(held)
            held = os.open(directory / f"{MANIFEST}.lock", os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _read(directory: Path) -> bytes | None:
    try:
        return (directory / MANIFEST).read_bytes()
    except FileNotFoundError:
        return None
