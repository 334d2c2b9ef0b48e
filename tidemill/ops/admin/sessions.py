"""Sessions of browsers: list them, and end one. Callers see their own; admins see all."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.accounts import Grants
from tidemill.core.errors import NotFoundError
from tidemill.ops.admin.tokens import administered
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, doc, operation
from tidemill.store.access import sessions as store
from tidemill.store.transaction import Reader, Transaction


class SessionRef(Arguments, frozen=True, kw_only=True):
    """Which session."""

    id: Annotated[int, doc("The session, as `tidemill session list` shows it.")]


class BrowserSession(msgspec.Struct, frozen=True):
    """A browser that is logged in. `own` is a session of the caller, `current` the one that asks."""

    id: int
    name: str
    grants: Annotated[Grants, doc("Roles by application; `*` stands for all of them.")]
    token_id: Annotated[int | None, doc("The token that it was opened with; null for a log-in by OIDC.")]
    address: str | None
    agent: str | None
    created_at: datetime
    used_at: datetime | None
    expires_at: datetime
    own: Annotated[bool, doc("Whether it is a session of the caller.")]
    current: Annotated[bool, doc("Whether it is the one that asks.")]


@operation("GET /sessions", role="viewer")
async def list_sessions(at: Reader, args: Nothing) -> ListOf[BrowserSession]:
    """List the caller's own sessions, newest first; for admins, those of all accounts that they administer."""
    return ListOf([_shown(at, row) for row in await _rows(at)])


@operation("DELETE /sessions/{id}", role="viewer")
async def end_session(tx: Transaction, args: SessionRef) -> None:
    """End one of the caller's own sessions, or any as an admin: its browser is logged out."""
    found = next((row for row in await _rows(tx) if row["id"] == args.id), None)
    if found is None:
        raise NotFoundError(f"there is no session {args.id} of yours: `tidemill session list` lists them")
    await store.end_session(tx, args.id, found["name"])


async def _rows(at: Reader | Transaction) -> list[Any]:
    """The sessions that the caller may see."""
    caller = at.caller
    if caller is None:
        return []
    own = []
    if caller.token_id is not None or caller.subject is not None:
        own = await store.list_sessions(at.database, token_id=caller.token_id, subject=caller.subject)
    if not caller.may("admin"):
        return own
    found = {row["id"]: row for row in await store.list_sessions(at.database, application=administered(at))}
    return sorted({**found, **{row["id"]: row for row in own}}.values(), key=lambda row: -row["id"])


def _shown(at: Reader, row: Any) -> BrowserSession:
    caller = at.caller
    own = caller is not None and (
        (caller.token_id is not None and row["token_id"] == caller.token_id)
        or (caller.subject is not None and row["subject"] == caller.subject)
    )
    return BrowserSession(
        row["id"],
        row["name"],
        store.grants_in(row["grants"]),
        row["token_id"],
        row["address"],
        row["agent"],
        row["created_at"],
        row["used_at"],
        row["expires_at"],
        own,
        caller is not None and caller.session_id == row["id"],
    )
