"""Credentials of workflow files in the database, as they were sealed; the keys are elsewhere."""

from __future__ import annotations

from collections.abc import Collection

import asyncpg

from tidemill.core.errors import NotFoundError
from tidemill.store.database import Database
from tidemill.store.transaction import Transaction

#: Stores a credential, or replaces it.
SET_CREDENTIAL = """
INSERT INTO tidemill.credential (name, fields, key_id, sealed, changed_by) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET fields = excluded.fields, key_id = excluded.key_id, sealed = excluded.sealed,
    changed_at = now(), changed_by = excluded.changed_by
RETURNING name, fields, key_id, changed_at, changed_by
"""

#: All credentials, without what is sealed.
LIST_CREDENTIALS = "SELECT name, fields, key_id, changed_at, changed_by FROM tidemill.credential ORDER BY name"

#: What is sealed in these credentials; in all of them if the names are null.
READ_SEALED = """
SELECT name, key_id, sealed FROM tidemill.credential WHERE $1::text[] IS NULL OR name = ANY ($1) ORDER BY name
"""

#: Those that another key has sealed, locked for a change.
LOCK_SEALED_BY_OTHERS = """
SELECT name, key_id, sealed FROM tidemill.credential WHERE key_id <> $1 ORDER BY name FOR UPDATE
"""

#: Replaces what is sealed, by another key.
RESEAL = "UPDATE tidemill.credential SET key_id = $2, sealed = $3 WHERE name = $1"

DELETE_CREDENTIAL = "DELETE FROM tidemill.credential WHERE name = $1 RETURNING fields"


async def set_credential(
    tx: Transaction, name: str, fields: Collection[str], key_id: str, sealed: bytes
) -> asyncpg.Record:
    """Store a sealed credential."""
    (row,) = await tx.fetch(SET_CREDENTIAL, name, list(fields), key_id, sealed, tx.by)
    await tx.audit("credential.set", name, after={"fields": list(fields)})
    return row


async def delete_credential(tx: Transaction, name: str) -> None:
    """Delete a credential."""
    row = await tx.fetchrow(DELETE_CREDENTIAL, name)
    if row is None:
        raise NotFoundError(f"there is no credential {name!r}: `tidemill credentials` lists them")
    await tx.audit("credential.delete", name, before={"fields": list(row["fields"])})


async def list_credentials(database: Database) -> list[asyncpg.Record]:
    return await database.fetch(LIST_CREDENTIALS)


async def read_sealed(database: Database, names: Collection[str]) -> list[asyncpg.Record]:
    """What is sealed in the credentials of these names."""
    return await database.fetch(READ_SEALED, list(names))
