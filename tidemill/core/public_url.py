"""What may be said aloud of a web address: paths, queries and user names may be secrets."""

from __future__ import annotations

from urllib.parse import urlsplit


def site_of(url: str) -> str:
    """Scheme and host of an address, for messages: `https://hooks.example` of `https://hooks.example/T0/s3cret`."""
    try:
        parts = urlsplit(url)
        return f"{parts.scheme}://{parts.hostname or '?'}"
    except ValueError:
        return "the address"
