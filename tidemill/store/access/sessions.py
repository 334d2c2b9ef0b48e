"""Sessions of browsers, opened with a token or by a log-in at an identity provider. Only hashes are stored."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from tidemill.core.accounts import Grants
from tidemill.core.codec import encode
from tidemill.core.errors import NotFoundError
from tidemill.store.access.tokens import NOTIFY_ACCOUNTS, VALID, Holder, hash_secret, token_holder
from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

#: Sessions with their accounts. A session of a token ends with the token.
_SESSIONS = f"""
SELECT s.id AS session_id, s.name AS user_name, s.subject, s.provider, s.grants, t.id, t.name, t.role, t.application
FROM installation.session AS s
LEFT JOIN (SELECT * FROM installation.token WHERE {VALID}) AS t ON t.id = s.token_id
WHERE s.expires_at > now() AND (t.id IS NOT NULL OR s.token_id IS NULL)
"""

#: The session of a cookie, and those of these ids.
FIND_SESSION = f"{_SESSIONS} AND s.hash = $1"
FIND_LIVE = f"{_SESSIONS} AND s.id = ANY($1::bigint[])"

#: Opens a session, and removes those that have expired.
OPEN_SESSION = """
WITH old AS (DELETE FROM installation.session WHERE expires_at < now())
INSERT INTO installation.session (hash, token_id, name, subject, provider, grants, address, agent, used_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now(), now() + make_interval(secs => $9))
RETURNING id, expires_at
"""

CLOSE_SESSION = "DELETE FROM installation.session WHERE hash = $1"

#: Live sessions, newest first: all; those of an account (`$1` its token, `$2` its subject); those of an application.
LIST_SESSIONS = f"""
SELECT s.id, coalesce(t.name, s.name) AS name, s.token_id, s.subject,
       CASE WHEN t.id IS NULL THEN s.grants ELSE jsonb_build_object(coalesce(t.application, '*'), t.role) END AS grants,
       s.address, s.agent, s.created_at, s.used_at, s.expires_at
FROM installation.session AS s
LEFT JOIN (SELECT * FROM installation.token WHERE {VALID}) AS t ON t.id = s.token_id
WHERE s.expires_at > now() AND (t.id IS NOT NULL OR s.token_id IS NULL)
  AND ($1::bigint IS NULL OR s.token_id = $1) AND ($2::text IS NULL OR s.subject = $2)
  AND ($3::text IS NULL OR t.application = $3
       OR (s.grants ? $3 AND NOT s.grants ? '*' AND (SELECT count(*) FROM jsonb_object_keys(s.grants)) = 1))
ORDER BY s.id DESC LIMIT 1000
"""

END_SESSION = "DELETE FROM installation.session WHERE id = $1"

#: Gives the other sessions of a user the roles of their newest log-in, or ends them if there are no roles left.
UPDATE_GRANTS = "UPDATE installation.session SET grants = $3 WHERE subject = $1 AND provider = $2"
END_SUBJECT = "DELETE FROM installation.session WHERE subject = $1 RETURNING id"

#: Records that sessions were used; a row that another server is recording right now is left to it.
RECORD_USE = """
UPDATE installation.session SET used_at = now() WHERE id IN (
    SELECT id FROM installation.session WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED)
"""


class BrowserInfo(msgspec.Struct, frozen=True):
    """Where a log-in comes from, as the list of sessions shows it."""

    address: str | None = None
    agent: str | None = None


class OpenedSession(msgspec.Struct, frozen=True):
    """A new session: `secret` is the value of its cookie."""

    secret: str
    id: int
    expires_at: datetime

    def __repr__(self) -> str:
        return f"OpenedSession({self.id})"


async def open_session(tx: Transaction, holder: Holder, browser: BrowserInfo, *, lasts: float) -> OpenedSession:
    """Open a session for the holder of a token, or for a user who logged in by OIDC."""
    secret = secrets.token_urlsafe(32)
    by_token = holder.token_id is not None
    grants = None if by_token else encode(holder.grants).decode()
    if holder.subject is not None:
        await tx.execute(UPDATE_GRANTS, holder.subject, holder.provider, grants)
        await tx.execute(NOTIFY_ACCOUNTS)
    row = await tx.fetchrow(
        OPEN_SESSION,
        hash_secret(secret),
        holder.token_id,
        None if by_token else holder.name,
        holder.subject,
        holder.provider,
        grants,
        browser.address,
        None if browser.agent is None else browser.agent[:200],
        lasts,
    )
    assert row is not None  # noqa: S101 - an INSERT returns its row
    return OpenedSession(secret, row["id"], row["expires_at"])


async def find_session(database: Database, secret: str) -> Holder | None:
    """The account of a session."""
    row = await database.fetchrow(FIND_SESSION, hash_secret(secret))
    return None if row is None else _session_holder(row)


async def find_live_sessions(database: Database, ids: Collection[int]) -> dict[int, Holder]:
    """The accounts of those of these sessions that have not ended."""
    return {row["session_id"]: _session_holder(row) for row in await database.fetch(FIND_LIVE, sorted(ids))}


def _session_holder(row: asyncpg.Record) -> Holder:
    if row["id"] is not None:
        return msgspec.structs.replace(token_holder(row), session_id=row["session_id"])
    return Holder(
        row["user_name"],
        grants_in(row["grants"]),
        session_id=row["session_id"],
        subject=row["subject"],
        provider=row["provider"],
    )


async def close_session(tx: Transaction, secret: str) -> None:
    """End the session of a cookie."""
    await tx.execute(CLOSE_SESSION, hash_secret(secret))
    await tx.execute(NOTIFY_ACCOUNTS)


async def list_sessions(
    database: Database, *, token_id: int | None = None, subject: str | None = None, application: str | None = None
) -> list[asyncpg.Record]:
    """Live sessions, newest first: all, or those of a token, of a user, or for one application only."""
    return await database.fetch(LIST_SESSIONS, token_id, subject, application)


async def end_session(tx: Transaction, session_id: int, name: str) -> None:
    """End a session: its browser is logged out."""
    if await tx.execute(END_SESSION, session_id) == "DELETE 0":
        raise NotFoundError(f"there is no session {session_id}: `tidemill session list` lists them")
    await tx.execute(NOTIFY_ACCOUNTS)
    await tx.audit("session.end", f"{session_id} {name}")


async def end_sessions_of(tx: Transaction, subject: str) -> int:
    """End all sessions of a user; returns how many there were."""
    ended = await tx.fetch(END_SUBJECT, subject)
    await tx.execute(NOTIFY_ACCOUNTS)
    return len(ended)


async def record_session_use(database: Database, ids: Collection[int]) -> None:
    """Record that these sessions have just been used."""
    await database.fetch(RECORD_USE, sorted(ids))


def grants_in(column: Any) -> Grants:
    """The roles of a session, from its column."""
    return msgspec.json.decode(column, type=Grants) if isinstance(column, str | bytes) else dict(column or {})
