"""Cases for the operations on tokens, retention and the audit, for the overview and for search."""

from __future__ import annotations

from tests.invariants.operations.case import Case, World
from tests.invariants.operations.jobs import two_jobs
from tests.support.operate import create_token
from tidemill.ops.admin import audit, overview, search, tokens
from tidemill.ops.operator.operation import Nothing
from tidemill.store.retention_settings import Retention


async def a_token(world: World) -> None:
    await create_token(world.database, "ops", "operate", by="ann")


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
        tokens.CreateToken(name="ci", scope="read", expires_in="1d"),
        wrong=(
            tokens.CreateToken(name="", scope="read"),
            tokens.CreateToken(name="x", scope="god"),  # pyright: ignore[reportArgumentType] - it is wrong
            tokens.CreateToken(name="x", scope="read", expires_in="-5s"),
        ),
        command="token create ci --scope read --expires 1d",
    ),
    "create_login_link": Case(Nothing(), command="token link"),
    "revoke_token": Case(tokens.TokenRef(id=1), a_token, (tokens.TokenRef(id=9),), command="token revoke 1"),
    "get_retention": Case(Nothing()),
    "check_deploy": Case(Nothing(), two_jobs),
    "set_retention": Case(Retention(jobs=4), wrong=(Retention(jobs=0),)),
}
