"""URLs of other servers: which are valid, and the part that is safe to show, as path and query may hold secrets."""

from __future__ import annotations

from urllib.parse import urlsplit

from tidemill.core.errors import ConfigError


def site_of(url: str) -> str:
    """Return scheme, host and port of a URL, for messages: `https://a.example:81` for `https://a.example:81/s3cret`."""
    try:
        parts = urlsplit(url)
        port = "" if parts.port is None else f":{parts.port}"
        return f"{parts.scheme}://{parts.hostname or '?'}{port}"
    except ValueError:
        return "the address"


def check_http_url(url: str) -> str:
    """Return the URL; a `ConfigError` says why nothing can be asked there."""
    try:
        parts = urlsplit(url)
        is_http = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise ConfigError("the address is not an http or https address") from None
    if not is_http:
        named = site_of(url) if "://" in url else "the address"
        raise ConfigError(f"{named} is not an http or https address, such as 'https://host/path'")
    if "@" in parts.netloc:
        raise ConfigError(f"{site_of(url)}: write no user name into the address: use token= or headers=")
    return url
