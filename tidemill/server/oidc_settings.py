"""The settings of a log-in by OpenID Connect: the identity provider, and which roles its claims give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tidemill.core.accounts import ClaimRule, read_claim_rule
from tidemill.core.errors import ConfigError
from tidemill.core.web.address import is_loopback


class OidcSettings(msgspec.Struct, frozen=True):
    """Which identity provider users log in at, and which roles their claims give."""

    issuer: str
    client_id: str
    rules: tuple[ClaimRule, ...]
    client_secret: str | None = None
    """None for a public client, which PKCE alone protects."""
    label: str = "OpenID Connect"
    """What the button of the log-in page calls it."""
    scopes: tuple[str, ...] = ("openid", "profile", "email")

    def __repr__(self) -> str:
        return f"OidcSettings({self.issuer!r}, {self.client_id!r})"

    @property
    def version(self) -> str:
        """Changes with everything that decides about roles: sessions of another version have to log in again."""
        text = msgspec.json.encode((self.issuer, self.client_id, self.rules))
        return hashlib.sha256(text).hexdigest()[:16]


def read_oidc_settings(
    issuer: str | None,
    client_id: str | None,
    *,
    roles: Iterable[str] = (),
    secret: str | None = None,
    secret_file: str | None = None,
    label: str | None = None,
    scopes: Iterable[str] = (),
) -> OidcSettings | None:
    """The settings of the log-in, from options and the environment; None if no provider is named."""
    rules = tuple(read_claim_rule(each) for each in roles)
    if issuer is None:
        if client_id is not None or rules:
            raise ConfigError("log-in by OIDC needs the provider's address: --oidc-issuer, or TIDEMILL_OIDC_ISSUER")
        return None
    parts = urlsplit(issuer)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))):
        raise ConfigError(f"--oidc-issuer {issuer!r} is not an address with https://")
    if client_id is None:
        raise ConfigError("log-in by OIDC needs --oidc-client-id: the provider gives it to this application")
    if not rules:
        raise ConfigError(
            "no user could log in by OIDC, because no claim gives a role: add --oidc-role CLAIM=VALUE:ROLE, "
            "such as --oidc-role groups=ops:operator"
        )
    try:
        import joserfc  # noqa: F401  # pyright: ignore[reportUnusedImport] - of an extra
    except ImportError as error:
        raise ConfigError("log-in by OIDC needs another package: pip install 'tidemill[oidc]'") from error
    if secret_file is not None:
        try:
            secret = Path(secret_file).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--oidc-client-secret-file {secret_file!r} cannot be read: {error}") from error
    wanted = tuple(dict.fromkeys(("openid", *scopes))) if scopes else ("openid", "profile", "email")
    return OidcSettings(
        issuer.rstrip("/"), client_id, rules, secret or None, label or parts.hostname or "OpenID Connect", wanted
    )
