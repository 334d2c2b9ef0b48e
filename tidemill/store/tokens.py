"""API tokens and browser sessions. Only hashes are stored: a lost token cannot be recovered.

Tokens are long random words, so a plain hash is enough: they cannot be guessed.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime
from typing import Literal, get_args

import asyncpg
import msgspec

from tidemill.core.errors import ConfigError, NotFoundError
from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

Scope = Literal["read", "operate", "admin"]

#: In ascending order: each scope includes those before it.
SCOPES: tuple[Scope, ...] = get_args(Scope)

PREFIX = "tm_"

#: Stores a new token.
CREATE = """
INSERT INTO installation.token (name, scope, hash, hint, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6::float8))
RETURNING id, name, scope, hint, created_at, created_by, expires_at, used_at, revoked_at, revoked_by
"""

#: All tokens, newest first.
LIST_TOKENS = """
SELECT id, name, scope, hint, created_at, created_by, expires_at, used_at, revoked_at, revoked_by
FROM installation.token ORDER BY id DESC LIMIT $1
"""

#: Revokes a token and ends the browser sessions that were opened with it.
REVOKE = """
WITH gone AS (DELETE FROM installation.session WHERE token_id = $1)
UPDATE installation.token SET revoked_at = now(), revoked_by = $2 WHERE id = $1 AND revoked_at IS NULL
RETURNING id, name
"""

_GOOD = "revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())"

#: The holder of a token. Its use is recorded at most once a minute.
FIND = f"""
WITH used AS (
    UPDATE installation.token SET used_at = now()
    WHERE hash = $1 AND {_GOOD} AND NOT one_time AND $2
      AND (used_at IS NULL OR used_at < now() - interval '1 minute'))
SELECT id, name, scope, expires_at FROM installation.token WHERE hash = $1 AND {_GOOD} AND NOT one_time
"""

#: Stores the token of a log-in link, in place of those that were never used in time.
CREATE_LINK = """
WITH old AS (DELETE FROM installation.token WHERE one_time AND used_at IS NULL AND expires_at < now())
INSERT INTO installation.token (name, scope, hash, hint, created_by, expires_at, one_time)
VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6::float8), true)
"""

#: Uses up the token of a log-in link; from then on it is valid for the sessions it has opened.
USE_LINK = f"""
UPDATE installation.token SET used_at = now(), expires_at = now() + make_interval(secs => $2::float8)
WHERE hash = $1 AND one_time AND used_at IS NULL AND {_GOOD}
RETURNING id, name, scope
"""

#: The holder of the token that opened a browser session.
FIND_SESSION = """
SELECT t.id, t.name, t.scope, s.expires_at
FROM installation.session AS s JOIN installation.token AS t ON t.id = s.token_id
WHERE s.hash = $1 AND s.expires_at > now() AND t.revoked_at IS NULL
  AND (t.expires_at IS NULL OR t.expires_at > now())
"""

#: Opens a browser session.
OPEN_SESSION = """
WITH old AS (DELETE FROM installation.session WHERE expires_at < now())
INSERT INTO installation.session (hash, token_id, expires_at) VALUES ($1, $2, now() + make_interval(secs => $3))
RETURNING expires_at
"""

CLOSE_SESSION = "DELETE FROM installation.session WHERE hash = $1"

#: The number of valid tokens.
COUNT = f"SELECT count(*) AS n FROM installation.token WHERE {_GOOD} AND NOT one_time"


class Holder(msgspec.Struct, frozen=True):
    """The holder of a token, and its scope."""

    token_id: int
    name: str
    scope: Scope


def hash_secret(secret: str) -> bytes:
    """The hash that is stored for a token or a session cookie."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


async def create_token(
    tx: Transaction, name: str, scope: str, *, expires_in: float | None = None
) -> tuple[str, asyncpg.Record]:
    """Create a token and its row. The token itself is returned only here."""
    if scope not in SCOPES:
        raise ConfigError(f"there is no scope {scope!r}; the scopes are {', '.join(SCOPES)}")
    if not name.strip() or len(name) > 100 or not name.isprintable():
        raise ConfigError(f"{name!r} is not a valid token name: use 1 to 100 printable characters")
    if expires_in is not None and not 0 < expires_in <= 3_153_600_000:
        raise ConfigError("the lifetime of a token must be more than zero and less than a hundred years")
    secret = PREFIX + secrets.token_urlsafe(32)
    (row,) = await tx.fetch(CREATE, name.strip(), scope, hash_secret(secret), secret[-4:], tx.by, expires_in)
    after = {"scope": scope, "expires_at": row["expires_at"]}
    await tx.audit("token.create", f"{row['id']} {row['name']}", after=after)
    return secret, row


async def list_tokens(database: Database, *, limit: int = 1000) -> list[asyncpg.Record]:
    """All tokens, newest first, without their secrets."""
    return await database.fetch(LIST_TOKENS, limit)


async def revoke_token(tx: Transaction, token_id: int) -> str:
    """Revoke a token permanently; returns its name."""
    row = await tx.fetchrow(REVOKE, token_id, tx.by)
    if row is None:
        raise NotFoundError(f"there is no valid token {token_id} to revoke: `tidemill token list` lists them")
    await tx.audit("token.revoke", f"{token_id} {row['name']}", before={"revoked": False}, after={"revoked": True})
    return row["name"]


async def find_token(database: Database, secret: str, *, note_use: bool = True) -> Holder | None:
    """The holder of a token; None if the token does not exist, has expired or was revoked."""
    row = await database.fetchrow(FIND, hash_secret(secret), note_use)
    return None if row is None else Holder(row["id"], row["name"], row["scope"])


def login_url(server: str, token: str) -> str:
    """The link that logs a browser in. The token is in the fragment, which no browser sends and no proxy logs."""
    return f"{server.rstrip('/')}/#token={token}"


async def create_login_link(tx: Transaction, *, lasts: float) -> str:
    """The token of a link that logs one browser in, once, as an admin."""
    secret = PREFIX + secrets.token_urlsafe(32)
    await tx.fetch(CREATE_LINK, "log-in link", "admin", hash_secret(secret), secret[-4:], tx.by, lasts)
    await tx.audit("token.link", "log-in link")
    return secret


async def use_login_link(database: Database, secret: str, *, lasts: float) -> Holder | None:
    """The holder of a link's token, which cannot be used again; None if it was used, has expired or is no link."""
    row = await database.fetchrow(USE_LINK, hash_secret(secret), lasts)
    return None if row is None else Holder(row["id"], row["name"], row["scope"])


async def has_tokens(database: Database) -> bool:
    """Whether there is a token to log in with."""
    return (await database.fetch(COUNT))[0]["n"] > 0


async def open_session(database: Database, token_id: int, *, lasts: float) -> tuple[str, datetime]:
    """Open a browser session: returns the value of its cookie, and when it expires."""
    secret = secrets.token_urlsafe(32)
    rows = await database.fetch(OPEN_SESSION, hash_secret(secret), token_id, lasts)
    return secret, rows[0]["expires_at"]


async def find_session(database: Database, secret: str) -> Holder | None:
    """The holder of the token that opened this session."""
    row = await database.fetchrow(FIND_SESSION, hash_secret(secret))
    return None if row is None else Holder(row["id"], row["name"], row["scope"])


async def close_session(database: Database, secret: str) -> None:
    """End a browser session."""
    await database.fetch(CLOSE_SESSION, hash_secret(secret))
