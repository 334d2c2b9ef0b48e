"""Signatures of incoming webhooks: HMAC-SHA256 over the raw body, in GitHub's form, in Stripe's, or in a plain header.

    WebhookSignature(form="github", secret_variable="GITHUB_SECRET")         X-Hub-Signature-256: sha256=HEX
    WebhookSignature(form="stripe", secret_variable="STRIPE_SECRET")         Stripe-Signature: t=SECONDS,v1=HEX
    WebhookSignature(header="X-Signature", encoding="base64", secret_file="/run/secrets/hook")

A secret comes from the environment or from a file, and is never shown; of several, one on each line, any may sign: so
that one can replace another. Forms with a time accept a request only for `tolerance`, and only once. GitHub signs no
time: a request counts once for each delivery id.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec

from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError, TidemillError

_HEADERS = {"github": "X-Hub-Signature-256", "stripe": "Stripe-Signature"}
_DELIVERIES = ("x-github-delivery", "idempotency-key")


class SignatureError(TidemillError):
    """A webhook whose signature is missing, wrong or too old: nothing runs."""


class WebhookSignature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """How the sender of a webhook signs, and where the secret is."""

    form: Literal["hmac-sha256", "github", "stripe"] = "hmac-sha256"
    header: str | None = None
    """The header with the signature, for `hmac-sha256`; `sha256=` may stand before it."""
    encoding: Literal["hex", "base64"] = "hex"
    timestamp_header: str | None = None
    """The header with the time in seconds, for `hmac-sha256`: "TIME.BODY" is signed, and old requests are refused."""
    tolerance: str | int | float = "5m"
    """How far the time of a request may be from now, where it is signed."""
    secret_variable: str | None = None
    """The environment variable with the secret."""
    secret_file: str | None = None
    """The file with the secret."""

    def __post_init__(self) -> None:
        if (self.secret_variable is None) == (self.secret_file is None):
            raise ConfigError("a signature names its secret: secretVariable, or secretFile, one of them")
        if self.form == "hmac-sha256" and self.header is None:
            raise ConfigError("a signature of form hmac-sha256 names its header, such as X-Signature")
        if self.form != "hmac-sha256" and (self.header, self.timestamp_header, self.encoding) != (None, None, "hex"):
            raise ConfigError(f"a signature of form {self.form} has its own header, time and encoding: leave them out")
        parse_duration(self.tolerance, what="tolerance")

    @property
    def header_name(self) -> str:
        return self.header or _HEADERS[self.form]


def read_signature(data: object) -> WebhookSignature:
    """The signature that a file declares; a `ConfigError` says what is wrong with it."""
    try:
        return msgspec.convert(data, WebhookSignature)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the signature cannot be read: {error}") from error


def sign_webhook(secret: str, body: bytes, *, now: float) -> str:
    """The signature of a webhook that we send: `t=SECONDS,v1=HEX`, with one `v1` for each secret of several."""
    moment = int(now)
    signed = f"{moment}.".encode() + body
    made = [hmac.new(each.encode(), signed, hashlib.sha256).hexdigest() for each in secret.split()]
    return ",".join([f"t={moment}", *(f"v1={digest}" for digest in made)])


def verify_webhook(signature: WebhookSignature, headers: Mapping[str, str], body: bytes, *, now: float) -> str | None:
    """Check a request, by its headers in small letters and its raw body; a `SignatureError` says why it is refused.

    Returns what identifies the request among its repetitions, or None if nothing does.
    """
    name = signature.header_name
    given = headers.get(name.lower())
    if not given:
        raise SignatureError(f"the header {name} is missing")
    at, sent = _read(signature, headers, given)
    if at is not None:
        off = abs(now - at)
        if not off <= parse_duration(signature.tolerance, what="tolerance"):
            raise SignatureError(f"it was signed {off:.0f} s from now, and {signature.tolerance} is the most")
    signed = body if at is None else f"{at}.".encode() + body
    right = [hmac.new(secret, signed, hashlib.sha256).digest() for secret in _secrets(signature)]
    # Every pair is compared, so that the time taken says nothing.
    if not sum(hmac.compare_digest(mine, theirs) for mine in right for theirs in sent):
        raise SignatureError(f"the signature in {name} does not match the body")
    if at is not None:
        return f"{at} {right[0].hex()}"  # The computed signature: a sender may append others to the header.
    delivery = next((headers[each] for each in _DELIVERIES if headers.get(each)), None)
    return None if delivery is None else f"{right[0].hex()} {hashlib.sha256(delivery.encode()).hexdigest()}"


def _read(signature: WebhookSignature, headers: Mapping[str, str], given: str) -> tuple[int | None, list[bytes]]:
    """The time of a request, if it is signed, and its signatures."""
    if signature.form == "stripe":
        parts = [part.strip().partition("=")[::2] for part in given.split(",")]
        at = _time(next((value for key, value in parts if key == "t"), ""), signature)
        return at, [_decoded(value, signature) for key, value in parts if key == "v1"]
    at = None
    if signature.timestamp_header is not None:
        at = _time(headers.get(signature.timestamp_header.lower(), ""), signature)
    return at, [_decoded(given.strip().removeprefix("sha256="), signature)]


def _time(text: str, signature: WebhookSignature) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise SignatureError(f"{signature.timestamp_header or signature.header_name} holds no time in seconds")
    return int(text)


def _decoded(text: str, signature: WebhookSignature) -> bytes:
    try:
        return bytes.fromhex(text) if signature.encoding == "hex" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise SignatureError(f"the signature in {signature.header_name} is not {signature.encoding}") from None


def _secrets(signature: WebhookSignature) -> Iterator[bytes]:
    if signature.secret_variable is not None:
        where, text = signature.secret_variable, os.environ.get(signature.secret_variable, "")
    else:
        where = signature.secret_file or ""
        try:
            text = Path(where).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"the secret of a webhook cannot be read from {where}: {error}") from error
    found = [line.strip().encode() for line in text.splitlines() if line.strip()]
    if not found:
        raise ConfigError(f"the secret of a webhook is missing: put it into {where}")
    yield from found
