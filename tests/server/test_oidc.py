"""Log-in at an identity provider, which is a real one: who gets in, with which role, and who does not."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.support.oidc import Provider, ScriptedProvider, Visitor, provider, serving
from tests.support.operate import create_token
from tests.support.server import TestServer
from tests.support.web import LOGIN_NEEDED, WebServer, web_server
from tidemill.core.accounts import read_claim_rule
from tidemill.core.errors import ConfigError
from tidemill.server.oidc import LoginRequest, OidcClient, OidcError, check_endpoints, local_path
from tidemill.server.oidc_settings import OidcSettings, read_oidc_settings
from tidemill.store.database import Database, DatabaseSettings

RULES = ("groups=admins:admin", "groups=shop:operator@test", "groups=others:admin@elsewhere", "groups=staff:viewer")


class Site(NamedTuple):
    """A server whose users log in at the provider."""

    web: WebServer
    provider: Provider
    database_url: str

    def visitor(self) -> Visitor:
        return Visitor(self.web.url)


def options(running: Provider, *rules: str) -> list[str]:
    secret = f"--oidc-client-secret-file={running.secret_file}"
    roles = (f"--oidc-role={each}" for each in rules)
    return [LOGIN_NEEDED, f"--oidc-issuer={running.url}", "--oidc-client-id=mill", secret, *roles]


@pytest.fixture(scope="module")
def site(server: TestServer) -> Iterator[Site]:
    with provider() as running:
        url = server.create()
        web = WebServer(url, *options(running, *RULES))
        asyncio.run(web.wait_ready())
        yield Site(web, running, url)
        web.close()
        server.drop(url)


def test_a_user_logs_in_acts_with_their_role_and_logs_out(site: Site) -> None:
    site.provider.set_user("ann", groups=["shop"], preferred_username="ann")
    ann = site.visitor()
    assert ann.session()["oidc"] == "127.0.0.1"
    assert ann.log_in("ann", "/jobs?state=failed") == "/jobs?state=failed"
    session = ann.session()
    assert (session["name"], session["role"], session["only"]) == ("ann (oidc ann)", "operator", "test")
    assert ann.ask("POST", "/jobs", {"task": "send", "args": {"order": 1}}).status_code == 201
    refused = ann.ask("GET", "/tokens")
    assert (refused.status_code, refused.json()["detail"]) == (403, "this needs the role admin, and yours is operator")
    assert ann.ask("DELETE", "/session").status_code == 200
    assert ann.session()["authenticated"] is False
    assert ann.ask("GET", "/jobs").status_code == 401


def test_the_request_for_a_log_in_has_state_nonce_and_a_challenge_and_no_two_are_alike(site: Site) -> None:
    sent = [parse_qs(urlsplit(site.visitor().begin()).query) for _ in range(2)]
    for query in sent:
        assert query["response_type"] == ["code"]
        assert query["code_challenge_method"] == ["S256"]
        assert query["redirect_uri"] == [f"{site.web.url}/login/oidc/callback"]
        assert "openid" in query["scope"][0].split()
    for name in ("state", "nonce", "code_challenge"):
        assert sent[0][name] != sent[1][name]
        assert len(sent[0][name][0]) >= 43


def test_the_cookie_of_a_log_in_is_out_of_reach_for_scripts_and_is_removed(site: Site) -> None:
    site.provider.set_user("ann", groups=["shop"])
    ann = site.visitor()
    response = ann.http.get(f"{site.web.url}/login/oidc")
    cookie = response.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=lax" in cookie.lower()
    assert "ann" not in str(ann.http.cookies.get("tidemill-login"))
    ann.come_back(ann.consent(response.headers["location"], "ann"))
    assert ann.http.cookies.get("tidemill-login") in (None, "")
    assert ann.session()["authenticated"] is True


@pytest.mark.parametrize("change", ["state=wrong", "state=", "no state", "no cookie", "another cookie"])
def test_an_answer_that_this_browser_did_not_ask_for_logs_nobody_in(site: Site, change: str) -> None:
    """A page that sends a victim to the callback with the attacker's code cannot log the victim in as the attacker."""
    site.provider.set_user("eve", groups=["admins"])
    eve, victim = site.visitor(), site.visitor()
    address = eve.consent(eve.begin(), "eve")
    parts = urlsplit(address)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    if change == "another cookie":
        victim.begin()
    elif change != "no cookie":
        victim = eve
        query.pop("state")
        if "=" in change:
            query["state"] = change.partition("=")[2]
    landed = victim.come_back(str(httpx.URL(f"{site.web.url}{parts.path}", params=query)))
    assert landed == "/?login=expired"
    assert victim.session()["authenticated"] is False


def test_a_code_works_once(site: Site) -> None:
    site.provider.set_user("ann", groups=["shop"])
    ann = site.visitor()
    begun = ann.begin()
    kept = ann.http.cookies.get("tidemill-login")
    address = ann.consent(begun, "ann")
    assert ann.come_back(address) == "/"
    again = site.visitor()
    again.http.cookies.set("tidemill-login", str(kept))
    assert again.come_back(address) == "/?login=failed"
    assert again.session()["authenticated"] is False


def test_a_stolen_code_is_worth_nothing_without_the_verifier(site: Site) -> None:
    site.provider.set_user("ann", groups=["admins"])
    ann, thief = site.visitor(), site.visitor()
    stolen = parse_qs(urlsplit(ann.consent(ann.begin(), "ann")).query)["code"][0]
    own = parse_qs(urlsplit(thief.begin()).query)["state"][0]
    address = httpx.URL(f"{site.web.url}/login/oidc/callback", params={"code": stolen, "state": own})
    assert thief.come_back(str(address)) == "/?login=failed"


def test_a_user_who_refuses_or_has_no_role_here_is_told_so(site: Site) -> None:
    site.provider.set_user("bob", groups=["others"], email="bob@example.org")
    bob = site.visitor()
    assert bob.log_in("bob") == "/?login=no_role"
    assert bob.session()["authenticated"] is False
    refused = site.visitor()
    back = refused.begin()
    state = parse_qs(urlsplit(back).query)["state"][0]
    query = {"error": "access_denied", "state": state}
    landed = refused.come_back(str(httpx.URL(f"{site.web.url}/login/oidc/callback", params=query)))
    assert landed == "/?login=denied"


def test_a_user_whose_claims_give_no_role_any_more_loses_all_sessions(site: Site) -> None:
    site.provider.set_user("cat", groups=["staff"])
    old, new = site.visitor(), site.visitor()
    old.log_in("cat")
    assert old.ask("GET", "/jobs").status_code == 200
    site.provider.set_user("cat", groups=["former"])
    assert new.log_in("cat") == "/?login=no_role"
    assert old.ask("GET", "/jobs").status_code == 401


def test_a_new_log_in_gives_the_new_role_to_older_sessions(site: Site) -> None:
    site.provider.set_user("dan", groups=["admins"])
    old, new = site.visitor(), site.visitor()
    old.log_in("dan")
    assert old.ask("GET", "/tokens").status_code == 200
    site.provider.set_user("dan", groups=["staff"])
    new.log_in("dan")
    assert old.ask("GET", "/tokens").status_code == 403
    assert old.session()["role"] == "viewer"


async def test_an_expired_log_in_has_to_be_repeated(site: Site) -> None:
    site.provider.set_user("eva", groups=["staff"])
    eva = site.visitor()
    eva.log_in("eva")
    async with Database(DatabaseSettings(url=site.database_url)) as database:
        await database.fetch("UPDATE tidemill.session SET expires_at = now() WHERE subject LIKE '% eva'")
    async with asyncio.timeout(150):
        while eva.ask("GET", "/jobs").status_code != 401:  # A session is remembered for some seconds.
            await asyncio.sleep(0.2)
    assert eva.log_in("eva") == "/"
    assert eva.ask("GET", "/jobs").status_code == 200


def test_sessions_are_listed_and_ended_own_ones_and_for_an_admin_all(site: Site) -> None:
    site.provider.set_user("fay", groups=["staff"])
    site.provider.set_user("gus", groups=["admins"])
    phone, laptop, gus = (site.visitor() for _ in range(3))
    for each, who in ((phone, "fay"), (laptop, "fay"), (gus, "gus")):
        each.log_in(who)
    listed = laptop.ask("GET", "/sessions").json()["items"]
    assert len(listed) == 2
    assert all(each["own"] and each["grants"] == {"*": "viewer"} for each in listed)
    (current,) = (each for each in listed if each["current"])
    (other,) = (each for each in listed if not each["current"])
    foreign = next(each for each in gus.ask("GET", "/sessions").json()["items"] if each["current"])
    assert laptop.ask("DELETE", f"/sessions/{foreign['id']}").status_code == 404, "it is not theirs"
    assert laptop.ask("DELETE", f"/sessions/{other['id']}").status_code == 204
    assert phone.ask("GET", "/jobs").status_code == 401
    assert {each["id"] for each in gus.ask("GET", "/sessions").json()["items"]} >= {current["id"], foreign["id"]}
    assert gus.ask("DELETE", f"/sessions/{current['id']}").status_code == 204
    assert laptop.ask("GET", "/jobs").status_code == 401
    assert gus.ask("GET", "/jobs").status_code == 200
    ended = gus.ask("GET", "/audit?action=session.end").json()["items"]
    assert [each["who"] for each in ended[:2]] == ["gus (oidc gus)", "fay (oidc fay)"]


async def test_other_rules_log_everyone_out(site: Site) -> None:
    site.provider.set_user("hal", groups=["staff"])
    hal = site.visitor()
    hal.log_in("hal")
    async with web_server(site.database_url, *options(site.provider, "groups=none:viewer")) as changed:
        hal.server = changed.url
        assert hal.session()["authenticated"] is False
    async with web_server(site.database_url, LOGIN_NEEDED) as without:
        hal.server = without.url
        assert hal.session()["authenticated"] is False
        assert hal.session()["oidc"] is None
        assert hal.http.get(f"{without.url}/login/oidc").status_code == 404
    hal.server = site.web.url
    assert hal.session()["authenticated"] is True


async def test_a_token_still_logs_in_beside_it(site: Site) -> None:
    async with Database(DatabaseSettings(url=site.database_url)) as database:
        token, _ = await create_token(database, "ci", "viewer", by="test")
    async with site.web.client(token) as bearer:
        assert (await bearer.get("/jobs")).status_code == 200


def test_no_secret_of_a_log_in_is_logged(site: Site) -> None:
    site.provider.set_user("ivy", groups=["staff"])
    ivy = site.visitor()
    address = ivy.consent(ivy.begin(), "ivy")
    ivy.come_back(address)
    cookie = ivy.http.cookies.get("tidemill")
    for secret in (parse_qs(urlsplit(address).query)["code"][0], str(cookie)):
        assert secret not in site.web.said


# -- the provider's answers -----------------------------------------------------------------------

KEY = RSAKey.generate_key(2048, parameters={"kid": "one"})
OTHER_KEY = RSAKey.generate_key(2048, parameters={"kid": "one"})
SECURE = "https://id.example.org"
NOW = 4_000_000_000
BEGUN = LoginRequest("s", "n", "v", "/")


class Scripted(NamedTuple):
    """A provider that answers as the test says."""

    provider: ScriptedProvider
    url: str

    def client(self, id_token: str, *, userinfo: dict[str, Any] | None = None, **discovered: Any) -> OidcClient:
        """A client for which the provider has this ID token."""
        more = {} if userinfo is None else {"userinfo_endpoint": f"{self.url}/userinfo"}
        self.provider.asked.clear()
        self.provider.answers = {
            ".well-known/openid-configuration": {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                **more,
                **discovered,
            },
            "token": {"id_token": id_token, "access_token": "at"},
            "keys": {"keys": [KEY.as_dict(private=False)]},
            "userinfo": userinfo,
        }
        return OidcClient(OidcSettings(self.url, "mill", (read_claim_rule("groups=ops:viewer"),), "secret"))

    def signed(self, key: Any = KEY, *, alg: str = "RS256", **changes: Any) -> str:
        claims = {"iss": self.url, "aud": "mill", "sub": "7", "exp": NOW, "iat": 1, "nonce": "n", "groups": ["ops"]}
        given = {name: value for name, value in {**claims, **changes}.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": "one"}, given, key, [alg])


@pytest.fixture(scope="module")
def scripted() -> Iterator[Scripted]:
    made = ScriptedProvider()
    with serving(made.app) as url:
        yield Scripted(made, url)


async def test_a_signed_token_of_this_log_in_is_accepted(scripted: Scripted) -> None:
    holder = await scripted.client(scripted.signed()).log_in(BEGUN, "code", "uri", None)
    assert (holder.grants, holder.subject) == ({"*": "viewer"}, f"{scripted.url} 7")


def shared_secret(token: str, key: bytes) -> str:
    """The token, signed by HMAC with a key that everyone can read."""
    head = base64.urlsafe_b64encode(b'{"alg":"HS256","kid":"one"}').decode().rstrip("=")
    text = f"{head}.{token.split('.')[1]}"
    made = hmac.new(key, text.encode(), hashlib.sha256).digest()
    return f"{text}.{base64.urlsafe_b64encode(made).decode().rstrip('=')}"


FORGED: dict[str, Callable[[Scripted], str]] = {
    "another key": lambda at: at.signed(OTHER_KEY),
    "another issuer": lambda at: at.signed(iss="https://evil.example.org"),
    "another audience": lambda at: at.signed(aud="another"),
    "several audiences": lambda at: at.signed(aud=["mill", "another"]),
    "issued to another": lambda at: at.signed(aud=["mill", "another"], azp="another"),
    "expired": lambda at: at.signed(exp=1),
    "for ever": lambda at: at.signed(exp=None),
    "another nonce": lambda at: at.signed(nonce="another"),
    "no nonce": lambda at: at.signed(nonce=None),
    "no subject": lambda at: at.signed(sub=None),
    "no signature": lambda at: at.signed().rpartition(".")[0] + ".",
    "no algorithm": lambda at: "eyJhbGciOiJub25lIn0." + at.signed().split(".")[1] + ".",
    "the public key as a shared secret": lambda at: shared_secret(at.signed(), KEY.as_pem(private=False)),
    "no token": lambda at: "not a token",
    "nothing": lambda at: "",
}


@pytest.mark.parametrize("kind", FORGED)
async def test_a_token_that_is_not_the_providers_for_this_log_in_is_refused(scripted: Scripted, kind: str) -> None:
    with pytest.raises(OidcError):
        await scripted.client(FORGED[kind](scripted)).log_in(BEGUN, "code", "uri", None)


async def test_an_answer_of_another_provider_is_refused(scripted: Scripted) -> None:
    token = scripted.signed()
    with pytest.raises(OidcError, match="another provider"):
        await scripted.client(token).log_in(BEGUN, "code", "uri", "https://evil.example.org")
    with pytest.raises(OidcError, match="another provider"):
        await scripted.client(token, issuer="https://evil.example.org").log_in(BEGUN, "code", "uri", None)
    with pytest.raises(OidcError, match="another user"):
        await scripted.client(token, userinfo={"sub": "8", "groups": ["ops"]}).log_in(BEGUN, "code", "uri", None)
    with pytest.raises(OidcError, match="does not answer"):
        await OidcClient(OidcSettings("http://127.0.0.1:9", "mill", ())).authorization_url(BEGUN, "uri")


def test_a_provider_with_tls_names_no_address_without() -> None:
    check_endpoints(SECURE, [f"{SECURE}/token", None])
    check_endpoints("http://127.0.0.1:1", ["http://127.0.0.1:1/token"])
    with pytest.raises(OidcError, match="without TLS"):
        check_endpoints(SECURE, ["http://id.example.org/token"])


async def test_claims_of_the_user_information_count_too_and_signed_ones_more(scripted: Scripted) -> None:
    said = {"sub": "7", "groups": ["ops"]}
    found = await scripted.client(scripted.signed(groups=None), userinfo=said).log_in(BEGUN, "c", "u", scripted.url)
    assert found.grants == {"*": "viewer"}
    found = await scripted.client(scripted.signed(groups=[]), userinfo=said).log_in(BEGUN, "c", "u", scripted.url)
    assert found.grants == {}


async def test_new_keys_of_the_provider_are_read_but_not_for_every_wrong_token(scripted: Scripted) -> None:
    client = scripted.client(scripted.signed())
    await client.log_in(BEGUN, "code", "uri", None)
    unknown = jwt.encode({"alg": "RS256", "kid": "two"}, {"iss": scripted.url}, RSAKey.generate_key(2048), ["RS256"])
    scripted.provider.answers["token"] = {"id_token": unknown}
    for _ in range(5):
        with pytest.raises(OidcError):
            await client.log_in(BEGUN, "code", "uri", None)
    assert scripted.provider.asked.count("keys") == 1


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("/jobs?state=failed", "/jobs?state=failed"),
        ("//evil.example.org/", "/"),
        ("/\\evil.example.org/", "/"),
        ("https://evil.example.org/", "/"),
        ("javascript:alert(1)", "/"),
        ("/a\r\nSet-Cookie: x=y", "/"),
        ("", "/"),
    ],
)
def test_a_log_in_leads_to_pages_of_this_site_only(given: str, taken: str) -> None:
    assert local_path(given) == taken


@pytest.mark.parametrize(
    ("issuer", "client", "roles", "said"),
    [
        ("http://id.example.org", "mill", RULES, "https://"),
        ("id.example.org", "mill", RULES, "https://"),
        (SECURE, None, RULES, "--oidc-client-id"),
        (SECURE, "mill", (), "--oidc-role"),
        (None, "mill", RULES, "--oidc-issuer"),
        (SECURE, "mill", ("groups=ops:god",), "CLAIM=VALUE:ROLE"),
    ],
)
def test_settings_that_could_log_nobody_in_or_anyone_are_refused(
    issuer: str | None, client: str | None, roles: Any, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_oidc_settings(issuer, client, roles=roles)


def test_the_secret_of_the_client_is_in_no_representation() -> None:
    made = read_oidc_settings(SECURE, "mill", roles=RULES, secret="hush")
    assert made is not None
    assert made.client_secret == "hush"
    assert "hush" not in repr(made)
    assert read_oidc_settings(None, None) is None
