"""Log-in at an identity provider by OpenID Connect: authorization code with PKCE, discovery, and signed ID tokens.

The provider says who the user is; `--oidc-role` says which roles its claims give. Nothing that the provider returns is
stored but the user's name and subject, and the roles.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from tidemill.core.accounts import grants_of
from tidemill.core.errors import TidemillError
from tidemill.server.oidc_settings import OidcSettings
from tidemill.store.access.tokens import Holder

#: Asymmetric signatures only: with a shared secret, every client of the provider could sign.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]

REQUEST_TIMEOUT = 10.0
MOST_ANSWER = 1 << 20
CONFIGURATION_KEPT = 3600.0
KEYS_READ_EVERY = 60.0
CLOCK_SKEW = 60

#: By which claim a user is called, the first that there is.
NAMES = ("preferred_username", "email", "name")


class OidcError(TidemillError):
    """A log-in at the identity provider failed; the message is for the server's log."""


class _Discovered(msgspec.Struct, frozen=True):
    """What the provider says about itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _Tokens(msgspec.Struct, frozen=True):
    """The provider's answer to an authorization code."""

    id_token: str
    access_token: str | None = None


class LoginRequest(msgspec.Struct, frozen=True):
    """A log-in under way. The browser keeps it in a cookie, so that only this browser can finish it."""

    state: str
    nonce: str
    verifier: str
    next: str

    @staticmethod
    def begin(next_page: str) -> LoginRequest:
        """A new log-in; all of its values are random words."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return LoginRequest(state, nonce, verifier, local_path(next_page))

    def to_cookie(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode().rstrip("=")

    @staticmethod
    def from_cookie(text: str) -> LoginRequest | None:
        try:
            found = msgspec.json.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)), type=LoginRequest)
        except (ValueError, msgspec.MsgspecError):
            return None
        return msgspec.structs.replace(found, next=local_path(found.next))


def local_path(text: str) -> str:
    """A path of this site to go to after a log-in; the first page if the text names another site."""
    parts = urlsplit(text)
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and not parts.netloc and text.isprintable()
    return text if is_local and "\\" not in text else "/"


def check_endpoints(issuer: str, addresses: Iterable[str | None]) -> None:
    """Raise if a provider with TLS names an address without."""
    for each in addresses:
        if each is not None and issuer.startswith("https://") and not each.startswith("https://"):
            raise OidcError(f"{issuer} names an address without TLS: {each!r}")


class OidcClient:
    """Talks to one identity provider. What it says about itself and its keys are kept for a while."""

    def __init__(self, settings: OidcSettings) -> None:
        self.settings = settings
        self._discovered: tuple[float, _Discovered] | None = None
        self._keys: tuple[float, Any] | None = None

    async def authorization_url(self, request: LoginRequest, redirect_uri: str) -> str:
        """Where the browser logs in."""
        found = await self._discover()
        challenge = base64.urlsafe_b64encode(hashlib.sha256(request.verifier.encode()).digest()).decode().rstrip("=")
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": redirect_uri,
                "scope": " ".join(self.settings.scopes),
                "state": request.state,
                "nonce": request.nonce,
                "code_challenge": challenge,
                "code_challenge_method": "S256",
            }
        )
        joined = "&" if "?" in found.authorization_endpoint else "?"
        return f"{found.authorization_endpoint}{joined}{query}"

    async def log_in(self, request: LoginRequest, code: str, redirect_uri: str, issuer: str | None) -> Holder:
        """The user of an authorization code, with the roles that their claims give: none at all, perhaps."""
        found = await self._discover()
        if issuer is not None and issuer != found.issuer:
            raise OidcError(f"the answer comes from another provider: {issuer[:200]!r}")
        tokens = await self._redeem(found, request, code, redirect_uri)
        claims = await self._verify(found, tokens.id_token, request.nonce)
        if found.userinfo_endpoint is not None and tokens.access_token is not None:
            headers = {"authorization": f"Bearer {tokens.access_token}"}
            more = msgspec.json.decode(await self._send("GET", found.userinfo_endpoint, headers), type=dict[str, Any])
            if more.get("sub") != claims["sub"]:
                raise OidcError("the provider's user information is of another user")
            claims = {**more, **claims}
        name = next((str(claims[each]) for each in NAMES if claims.get(each)), claims["sub"])
        shown = "".join(each for each in name if each.isprintable())[:100]
        subject = f"{found.issuer} {claims['sub']}"
        grants = grants_of(claims, self.settings.rules)
        return Holder(shown, grants, subject=subject, provider=self.settings.version)

    async def _redeem(self, found: _Discovered, request: LoginRequest, code: str, redirect_uri: str) -> _Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self.settings.client_id,
            "code_verifier": request.verifier,
        }
        headers: dict[str, str] = {}
        secret = self.settings.client_secret
        if secret is not None and "client_secret_basic" in found.token_endpoint_auth_methods_supported:
            pair = f"{quote(self.settings.client_id, safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        elif secret is not None:
            form["client_secret"] = secret
        answer = await self._send("POST", found.token_endpoint, headers, form=form)
        try:
            return msgspec.json.decode(answer, type=_Tokens)
        except msgspec.MsgspecError as error:
            raise OidcError(f"{found.token_endpoint} answers with no ID token: {error}") from error

    async def _verify(self, found: _Discovered, id_token: str, nonce: str) -> dict[str, Any]:
        """The claims of an ID token: signed by the provider, for this application and this log-in, not expired."""
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        needed = jwt.JWTClaimsRegistry(
            leeway=CLOCK_SKEW,
            iss={"essential": True, "value": found.issuer},
            aud={"essential": True, "value": self.settings.client_id},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
            nonce={"essential": True, "value": nonce},
        )
        try:
            try:
                token = jwt.decode(id_token, await self._read_keys(found), algorithms=ALGORITHMS)
            except InvalidKeyIdError:  # The provider may have a new key.
                token = jwt.decode(id_token, await self._read_keys(found, again=True), algorithms=ALGORITHMS)
            needed.validate(token.claims)
        except (JoseError, ValueError) as error:
            raise OidcError(f"the ID token is not valid: {error}") from error
        claims: dict[str, Any] = token.claims
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != self.settings.client_id:
            raise OidcError("the ID token is for several applications, and not issued to this one")
        return claims

    async def _read_keys(self, found: _Discovered, *, again: bool = False) -> Any:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        now = time.monotonic()
        if self._keys is not None and now < self._keys[0] + (KEYS_READ_EVERY if again else CONFIGURATION_KEPT):
            return self._keys[1]
        try:
            keys = KeySet.import_key_set(msgspec.json.decode(await self._send("GET", found.jwks_uri)))
        except (JoseError, ValueError, KeyError, TypeError) as error:
            raise OidcError(f"the keys at {found.jwks_uri} cannot be read: {error}") from error
        self._keys = (now, keys)
        return keys

    async def _discover(self) -> _Discovered:
        now = time.monotonic()
        if self._discovered is not None and now < self._discovered[0] + CONFIGURATION_KEPT:
            return self._discovered[1]
        address = f"{self.settings.issuer}/.well-known/openid-configuration"
        try:
            found = msgspec.json.decode(await self._send("GET", address), type=_Discovered)
        except msgspec.MsgspecError as error:
            raise OidcError(f"{address} is not the configuration of a provider: {error}") from error
        if found.issuer.rstrip("/") != self.settings.issuer:
            raise OidcError(f"{address} is the configuration of another provider: {found.issuer!r}")
        named = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri, found.userinfo_endpoint)
        check_endpoints(self.settings.issuer, named)
        self._discovered = (now, found)
        return found

    async def _send(
        self,
        method: str,
        address: str,
        headers: Mapping[str, str] | None = None,
        *,
        form: Mapping[str, str] | None = None,
    ) -> bytes:
        import httpx  # Imported here, because it takes a while.

        try:
            async with (
                httpx.AsyncClient(timeout=REQUEST_TIMEOUT, follow_redirects=False, trust_env=False) as client,
                client.stream(
                    method, address, headers={"accept": "application/json", **(headers or {})}, data=form
                ) as answer,
            ):
                body = bytearray()
                async for part in answer.aiter_bytes():
                    body += part
                    if len(body) > MOST_ANSWER:
                        raise OidcError(f"{address} answers with more than {MOST_ANSWER:,} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise OidcError(f"{address} does not answer: {error or type(error).__name__}") from error
        if answer.status_code != 200:
            raise OidcError(f"{address} answers with {answer.status_code}: {bytes(body[:200])!r}")
        return bytes(body)
