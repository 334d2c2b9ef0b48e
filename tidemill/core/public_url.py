"""The part of a URL that is safe to show: its path, query and user name may contain secrets."""

from __future__ import annotations

from urllib.parse import urlsplit


def site_of(url: str) -> str:
    """Return scheme and host of a URL, for messages: `https://hooks.example` for `https://hooks.example/T0/s3cret`."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or '?'}"
    except ValueError:
        return "the address"
