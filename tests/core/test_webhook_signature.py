"""Signatures of webhooks: which requests pass, and why the others do not."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tidemill.core.errors import ConfigError
from tidemill.core.web.webhook_signature import SignatureError, WebhookSignature, read_signature, verify_webhook

NOW = 1_700_000_000.0
SECRET = "It's a Secret to Everybody"
BODY = b"Hello, World!"
#: The example of GitHub's documentation.
GITHUBS = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def signed(body: bytes, secret: str = SECRET) -> bytes:
    return hmac.new(secret.encode(), body, hashlib.sha256).digest()


def stripe(body: bytes, at: int = int(NOW), secret: str = SECRET) -> str:
    return f"t={at},v1={signed(f'{at}.'.encode() + body, secret).hex()},v0=00"


GITHUB = WebhookSignature(form="github", secret_variable="HOOK_SECRET")
STRIPE = WebhookSignature(form="stripe", secret_variable="HOOK_SECRET")
PLAIN = WebhookSignature(header="X-Signature", secret_variable="HOOK_SECRET")
BASE64 = WebhookSignature(header="X-Signature", encoding="base64", secret_variable="HOOK_SECRET")
TIMED = WebhookSignature(header="X-Signature", timestamp_header="X-Time", tolerance="1m", secret_variable="HOOK_SECRET")


def check(signature: WebhookSignature, headers: dict[str, str], body: bytes = BODY, now: float = NOW) -> str | None:
    return verify_webhook(signature, headers, body, now=now)


def test_each_form_of_a_right_signature_passes() -> None:
    check(GITHUB, {"x-hub-signature-256": GITHUBS})
    check(STRIPE, {"stripe-signature": stripe(BODY)})
    check(PLAIN, {"x-signature": signed(BODY).hex()})
    check(PLAIN, {"x-signature": f"sha256={signed(BODY).hex()}"})
    check(BASE64, {"x-signature": base64.b64encode(signed(BODY)).decode()})
    check(TIMED, {"x-signature": signed(b"1700000000." + BODY).hex(), "x-time": "1700000000"})


@pytest.mark.parametrize(
    ("signature", "headers", "why"),
    [
        (GITHUB, {}, "the header X-Hub-Signature-256 is missing"),
        (GITHUB, {"x-hub-signature-256": ""}, "is missing"),
        (GITHUB, {"x-hub-signature-256": GITHUBS[:-2]}, "does not match"),
        (GITHUB, {"x-hub-signature-256": "sha256=xyz"}, "is not hex"),
        (GITHUB, {"x-hub-signature-256": f"sha1={GITHUBS[7:]}"}, "is not hex"),
        (STRIPE, {"stripe-signature": stripe(BODY, secret="other")}, "does not match"),
        (STRIPE, {"stripe-signature": stripe(BODY, at=int(NOW) - 301)}, "signed 301 s from now, and 5m is the most"),
        (STRIPE, {"stripe-signature": stripe(BODY, at=int(NOW) + 301)}, "signed 301 s from now"),
        (STRIPE, {"stripe-signature": stripe(BODY).replace("v1", "v0")}, "does not match"),
        (STRIPE, {"stripe-signature": "v1=00"}, "holds no time"),
        (STRIPE, {"stripe-signature": f"t=nan,v1={signed(b'nan.' + BODY).hex()}"}, "holds no time"),
        (BASE64, {"x-signature": signed(BODY).hex() + "!"}, "is not base64"),
        (TIMED, {"x-signature": signed(BODY).hex()}, "X-Time holds no time"),
        (TIMED, {"x-signature": signed(BODY).hex(), "x-time": "1700000000"}, "does not match"),
    ],
)
def test_any_other_is_refused_with_its_reason(signature: WebhookSignature, headers: dict[str, str], why: str) -> None:
    with pytest.raises(SignatureError, match=why) as refused:
        check(signature, headers)
    assert SECRET not in str(refused.value)


@given(st.binary(), st.binary())
def test_a_signature_is_that_of_one_body(body: bytes, other: bytes) -> None:
    header = {"x-signature": signed(body).hex()}
    check(PLAIN, header, body)
    if other != body:
        with pytest.raises(SignatureError):
            check(PLAIN, header, other)


def test_the_key_of_a_request_cannot_be_changed_by_adding_to_its_header() -> None:
    first = check(STRIPE, {"stripe-signature": stripe(BODY)})
    assert first is not None
    assert check(STRIPE, {"stripe-signature": f"v1=00,{stripe(BODY)},v1=ff"}) == first
    assert check(STRIPE, {"stripe-signature": stripe(BODY, at=int(NOW) + 1)}) != first
    assert check(PLAIN, {"x-signature": signed(BODY).hex()}) is None
    one = check(GITHUB, {"x-hub-signature-256": GITHUBS, "x-github-delivery": "a"})
    assert one not in (None, check(GITHUB, {"x-hub-signature-256": GITHUBS, "x-github-delivery": "b"}))


def test_while_a_secret_is_replaced_both_sign(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    signature = WebhookSignature(header="X-Signature", secret_file=str(file))
    with pytest.raises(ConfigError, match="cannot be read from"):
        check(signature, {"x-signature": "00"})
    file.write_text("\n")
    with pytest.raises(ConfigError, match="is missing: put it into"):
        check(signature, {"x-signature": "00"})
    file.write_text("new\nold\n")
    for secret in ("new", "old"):
        check(signature, {"x-signature": signed(BODY, secret).hex()})
    with pytest.raises(SignatureError):
        check(signature, {"x-signature": signed(BODY, "older").hex()})


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "names its secret"),
        ({"form": "github", "secretVariable": "A", "secretFile": "b"}, "names its secret"),
        ({"secretVariable": "A"}, "names its header"),
        ({"form": "stripe", "header": "X", "secretVariable": "A"}, "has its own header"),
        ({"form": "sha1", "secretVariable": "A"}, "cannot be read"),
        ({"form": "github", "secret": "plain text"}, "cannot be read"),
        ({"form": "github", "secretVariable": "A", "tolerance": "soon"}, "tolerance"),
        ("github", "cannot be read"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(data: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_signature(data)
