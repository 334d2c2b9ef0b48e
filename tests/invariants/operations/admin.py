"""Cases for the operations on tokens, retention and the audit, for the overview and for search."""

from __future__ import annotations

from tests.invariants.operations.case import Case, World
from tests.invariants.operations.jobs import two_jobs
from tests.support.operate import create_token
from tidemill.engine.secrets.credentials import seal_fields
from tidemill.ops.admin import audit, credentials, forget, overview, search, sessions, tokens
from tidemill.ops.operator.operation import Nothing
from tidemill.store.access.credentials import set_credential as store_credential
from tidemill.store.access.key_ring import read_keys
from tidemill.store.access.sessions import BrowserInfo, open_session
from tidemill.store.access.tokens import find_token
from tidemill.store.maintenance.retention_settings import Retention
from tidemill.store.transaction import transaction

KEY = "a2V5IGZvciB0ZXN0cywgMzIgYnl0ZXMgbG9uZyAuLi4="
KEY_FILE = "WEB_SECRET_KEY_FILE"


async def a_token(world: World) -> None:
    await create_token(world.database, "ops", "operator", by="ann")


async def a_credential(world: World) -> None:
    ring = read_keys(KEY, "the test")
    async with transaction(world.database, by="ann") as tx:
        await store_credential(tx, "news", ["token"], *seal_fields(ring, {"token": "s3cret"}, "news"))


async def a_session(world: World) -> None:
    """Session 1 was opened with token 1."""
    secret, _ = await create_token(world.database, "ops", "operator", by="ann")
    holder = await find_token(world.database, secret)
    assert holder is not None
    async with transaction(world.database, by="ann") as tx:
        await open_session(tx, holder, BrowserInfo("127.0.0.1", "Firefox"), lasts=3600.0)


CASES: dict[str, Case] = {
    "get_overview": Case(Nothing(), two_jobs),
    "get_throughput": Case(overview.GetThroughput(), wrong=(overview.GetThroughput(every=0.0),)),
    "search": Case(search.Search(q="send"), two_jobs, (search.Search(q=""), search.Search(q="x", limit=99))),
    "list_audit": Case(
        audit.ListAudit(action="job"),
        two_jobs,
        (audit.ListAudit(limit=0), audit.ListAudit(cursor="?")),
        command="audit --action job --json",
        items=True,
    ),
    "list_tokens": Case(Nothing(), a_token, command="token list --json", items=True),
    "create_token": Case(
        tokens.CreateToken(name="ci", role="viewer", expires_in="1d"),
        wrong=(
            tokens.CreateToken(name="", role="viewer"),
            tokens.CreateToken(name="x", role="god"),  # pyright: ignore[reportArgumentType] - it is wrong
            tokens.CreateToken(name="x", role="viewer", expires_in="-5s"),
        ),
        command="token create ci --role viewer --expires 1d",
    ),
    "create_login_link": Case(Nothing(), command="token link"),
    "revoke_token": Case(tokens.TokenRef(id=1), a_token, (tokens.TokenRef(id=9),), command="token revoke 1"),
    "list_credentials": Case(Nothing(), a_credential, command="credentials --json", items=True),
    "set_credential": Case(
        credentials.SetCredential(name="mail", fields={"user": "ann", "password": "s3cret"}),
        wrong=(
            credentials.SetCredential(name="mail", fields={}),
            credentials.SetCredential(name="mail", fields={"no space": "x"}),
            credentials.SetCredential(name="mail", fields={"token": ""}),
        ),
    ),
    "delete_credential": Case(
        credentials.CredentialRef(name="news"),
        a_credential,
        (credentials.CredentialRef(name="none"),),
        command="credentials delete news",
    ),
    "rotate_credentials": Case(Nothing(), a_credential, command="credentials rotate --json"),
    "list_sessions": Case(Nothing(), a_session, command="session list --json", items=True),
    "end_session": Case(sessions.SessionRef(id=1), a_session, (sessions.SessionRef(id=9),), command="session end 1"),
    "get_retention": Case(Nothing()),
    "check_deploy": Case(Nothing(), two_jobs),
    "check_database": Case(Nothing(), two_jobs),
    "forget_data": Case(
        forget.ForgetData(key="k"),
        two_jobs,
        (forget.ForgetData(), forget.ForgetData(key="k", tag="t"), forget.ForgetData(key="")),
        command="forget --key k --yes --json",
    ),
    "set_retention": Case(Retention(jobs=4), wrong=(Retention(jobs=0),)),
}
