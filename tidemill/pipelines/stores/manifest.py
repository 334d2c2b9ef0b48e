"""`.manifest.json`: what a person, or another program, can read about the states in a directory.

Many processes may change one manifest: each holds a lock on the directory while it reads, changes and replaces it.
A manifest is changed after its files: it never names one that is not there.
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
    """A manifest whose entries are not looked into: there may be very many, and few of them change."""

    states: dict[str, msgspec.Raw] = {}


_decoder = msgspec.json.Decoder(Manifest)
_texts = msgspec.json.Decoder(_Texts)
_encode = msgspec.json.Encoder().encode


def entries_in(data: bytes, place: str) -> dict[str, ManifestEntry]:
    """The entries that a manifest's text holds."""
    try:
        return _decoder.decode(data).states
    except msgspec.DecodeError as error:
        raise StateStoreError(f"{place} cannot be read: {error}; delete it, and it is written anew") from error


def changed_entries(data: bytes | None, changes: Mapping[str, ManifestEntry | None]) -> dict[str, msgspec.Raw]:
    """The entries of a manifest after these changes, as texts. One that cannot be read is begun anew: it is no loss,
    since the database knows the rest."""
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
    """A manifest's text: the texts of its entries, put together without being read."""
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
    """The entries of a directory's manifest; none where there is no manifest."""
    data = _read(directory)
    return {} if data is None else entries_in(data, str(directory / MANIFEST))


def change_manifest(directory: Path, changes: Mapping[str, ManifestEntry | None]) -> None:
    """Put in and take out entries, whoever else does so at the same time."""
    with locked(directory):
        entries = changed_entries(_read(directory), changes)
        for name in entries.keys() - set(os.listdir(directory)):
            del entries[name]
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
    """Hold a directory against everybody else who asks here."""
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
