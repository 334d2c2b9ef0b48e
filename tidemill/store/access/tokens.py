"""API tokens. Only hashes are stored: a lost token cannot be recovered.

Tokens are long random words, so a plain hash is enough: they cannot be guessed.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection

import asyncpg
import msgspec

from tidemill.core.accounts import EVERY_APPLICATION, ROLES, AccountRole, Grants
from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

PREFIX = "tm_"
ACCOUNTS_CHANNEL = "accounts"

_SHOWN = "id, name, role, application, hint, created_at, created_by, expires_at, used_at, revoked_at, revoked_by"

#: Stores a new token.
CREATE = f"""
INSERT INTO installation.token (name, role, application, hash, hint, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7::float8))
RETURNING {_SHOWN}
"""

#: Tokens, newest first; of one application if `$2` names it.
LIST_TOKENS = f"""
SELECT {_SHOWN} FROM installation.token WHERE $2::text IS NULL OR application = $2 ORDER BY id DESC LIMIT $1
"""

#: Revokes a token, of one application if `$3` names it, and ends the browser sessions that were opened with it.
REVOKE = """
WITH revoked AS (
    UPDATE installation.token SET revoked_at = now(), revoked_by = $2
    WHERE id = $1 AND revoked_at IS NULL AND ($3::text IS NULL OR application = $3)
    RETURNING id, name
), ended AS (DELETE FROM installation.session WHERE token_id IN (SELECT id FROM revoked))
SELECT id, name FROM revoked
"""

#: Tells every server of the installation that a token or session is no longer valid, or has other roles.
NOTIFY_ACCOUNTS = "SELECT pg_notify('installation_accounts', '')"

#: Whether a token may be used.
VALID = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"

#: The holder of a token.
FIND = f"""
SELECT id, name, role, application FROM installation.token WHERE hash = $1 AND {VALID} AND NOT one_time
"""

#: Which of these tokens are valid.
FIND_VALID = f"SELECT id, name, role, application FROM installation.token WHERE id = ANY($1::bigint[]) AND {VALID}"

#: Records that tokens were used; a row that another server is recording right now is left to it.
RECORD_USE = """
UPDATE installation.token SET used_at = now() WHERE id IN (
    SELECT id FROM installation.token WHERE id = ANY($1::bigint[]) ORDER BY id FOR UPDATE SKIP LOCKED)
"""

#: Stores the token of a log-in link, in place of those that were never used in time.
CREATE_LINK = """
WITH old AS (DELETE FROM installation.token WHERE one_time AND used_at IS NULL AND expires_at < now())
INSERT INTO installation.token (name, role, application, hash, hint, created_by, expires_at, one_time)
VALUES ($1, $2, $3, $4, $5, $6, now() + make_interval(secs => $7::float8), true)
"""

#: Stores a token that a server uses itself, in place of those that have expired.
CREATE_FOR_SERVER = """
WITH old AS (DELETE FROM installation.token WHERE created_by = 'server' AND NOT one_time AND expires_at < now())
INSERT INTO installation.token (name, role, application, hash, hint, created_by, expires_at)
VALUES ($1, 'operator', $2, $3, $4, 'server', now() + make_interval(secs => $5::float8))
"""

#: Uses up the token of a log-in link; from then on it is valid for the sessions it has opened.
USE_LINK = f"""
UPDATE installation.token SET used_at = now(), expires_at = now() + make_interval(secs => $2::float8)
WHERE hash = $1 AND one_time AND used_at IS NULL AND {VALID}
RETURNING id, name, role, application
"""

#: The number of valid tokens.
COUNT = f"SELECT count(*) AS n FROM installation.token WHERE {VALID} AND NOT one_time"

#: The applications of the installation.
APPLICATIONS = "SELECT name FROM installation.application ORDER BY name"


class Holder(msgspec.Struct, frozen=True):
    """The account that a token or a session belongs to, and its roles by application."""

    name: str
    grants: Grants
    token_id: int | None = None
    session_id: int | None = None
    subject: str | None = None
    provider: str | None = None
    """For a log-in by OIDC: the version of the settings that gave the roles."""


def hash_secret(secret: str) -> bytes:
    """The hash that is stored for a token or a session cookie."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def token_holder(row: asyncpg.Record) -> Holder:
    """The holder of a token's row."""
    return Holder(row["name"], {row["application"] or EVERY_APPLICATION: row["role"]}, row["id"])


async def create_token(
    tx: Transaction,
    name: str,
    role: AccountRole,
    *,
    application: str | None = None,
    expires_in: float | None = None,
) -> tuple[str, asyncpg.Record]:
    """Create a token and its row. The token itself is returned only here."""
    if role not in ROLES:
        raise ConfigError(f"there is no role {role!r}; the roles are {', '.join(ROLES)}")
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise ConfigError(f"{name!r} is not a valid token name: use 1 to 100 printable characters")
    if expires_in is not None and not 0 < expires_in <= 3_153_600_000:
        raise ConfigError("the lifetime of a token must be more than zero and less than a hundred years")
    if application is not None:
        known = [row["name"] for row in await tx.fetch(APPLICATIONS)]
        if application not in known:
            raise ConfigError(f"there is no application {application!r}; there are: {', '.join(known) or 'none'}")
    secret = PREFIX + secrets.token_urlsafe(32)
    (row,) = await tx.fetch(
        CREATE, name.strip(), role, application, hash_secret(secret), secret[-4:], tx.by, expires_in
    )
    after = {"role": role, "application": application, "expires_at": row["expires_at"]}
    await tx.audit("token.create", f"{row['id']} {row['name']}", after=after)
    return secret, row


async def list_tokens(database: Database, *, application: str | None = None, limit: int = 1000) -> list[asyncpg.Record]:
    """All tokens, or those of one application, newest first, without their secrets."""
    return await database.fetch(LIST_TOKENS, limit, application)


async def revoke_token(tx: Transaction, token_id: int, *, application: str | None = None) -> str:
    """Revoke a token permanently, of one application if it is named; returns its name."""
    row = await tx.fetchrow(REVOKE, token_id, tx.by, application)
    if row is None:
        raise NotFoundError(f"there is no valid token {token_id} to revoke: `tidemill token list` lists them")
    await tx.execute(NOTIFY_ACCOUNTS)
    await tx.audit("token.revoke", f"{token_id} {row['name']}", before={"revoked": False}, after={"revoked": True})
    return row["name"]


async def find_token(database: Database, secret: str) -> Holder | None:
    """The holder of a token; None if the token does not exist, has expired or was revoked."""
    row = await database.fetchrow(FIND, hash_secret(secret))
    return None if row is None else token_holder(row)


async def find_valid_tokens(database: Database, ids: Collection[int]) -> dict[int, Holder]:
    """The holders of those of these tokens that are valid."""
    return {row["id"]: token_holder(row) for row in await database.fetch(FIND_VALID, sorted(ids))}


async def record_token_use(database: Database, ids: Collection[int]) -> None:
    """Record that these tokens have just been used."""
    await database.fetch(RECORD_USE, sorted(ids))


def login_url(server: str, token: str) -> str:
    """The link that logs a browser in. The token is in the fragment, which no browser sends and no proxy logs."""
    return f"{server.rstrip('/')}/#token={token}"


async def create_login_link(tx: Transaction, *, lasts: float, application: str | None = None) -> str:
    """The token of a link that logs one browser in, once, as an admin."""
    secret = PREFIX + secrets.token_urlsafe(32)
    given = ("log-in link", "admin", application, hash_secret(secret), secret[-4:], tx.by, lasts)
    await tx.fetch(CREATE_LINK, *given)
    await tx.audit("token.link", "log-in link")
    return secret


async def create_server_token(database: Database, name: str, application: str, *, lasts: float) -> str:
    """A token with which a server forwards live requests to the streams of its application."""
    secret = PREFIX + secrets.token_urlsafe(32)
    await database.fetch(CREATE_FOR_SERVER, name, application, hash_secret(secret), secret[-4:], lasts)
    return secret


async def use_login_link(database: Database, secret: str, *, lasts: float) -> Holder | None:
    """The holder of a link's token, which cannot be used again; None if it was used, has expired or is no link."""
    row = await database.fetchrow(USE_LINK, hash_secret(secret), lasts)
    return None if row is None else token_holder(row)


async def has_tokens(database: Database) -> bool:
    """Whether there is a token to log in with."""
    return (await database.fetch(COUNT))[0]["n"] > 0
