"""Credentials of workflow files: store, list, delete and rotate them. Their values are never returned."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec

from tidemill.core.errors import PayloadError
from tidemill.core.jobs.job import check_name
from tidemill.declarations import Declarations
from tidemill.engine.secrets.credentials import open_fields, seal_fields
from tidemill.engine.settings import load_settings
from tidemill.ops.operator.operation import Arguments, ListOf, Nothing, doc, operation
from tidemill.store.access import credentials as store
from tidemill.store.access.key_ring import KeyRing, find_key_ring, require_key_ring
from tidemill.store.transaction import Reader, Transaction

FieldName = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
FieldValue = Annotated[str, msgspec.Meta(max_length=64 * 1024)]


class CredentialRef(Arguments, frozen=True, kw_only=True):
    """Which credential."""

    name: Annotated[str, doc("The credential.", min_length=1, max_length=100)]


class SetCredential(CredentialRef, frozen=True, kw_only=True):
    """A credential to store, in place of one of this name."""

    fields: Annotated[
        dict[FieldName, FieldValue], doc("Its secrets by name: token, or user and password.", min_length=1)
    ]


class Credential(msgspec.Struct, frozen=True):
    """A credential, without its values. `readable` says whether a key of this process can open it."""

    name: str
    fields: list[str]
    key_id: Annotated[str, doc("The key that it is sealed with.")]
    changed_at: datetime
    changed_by: str
    readable: bool


class CredentialsRotated(msgspec.Struct, frozen=True):
    """How many credentials were sealed again, with which key."""

    key_id: str
    count: int


@operation("GET /credentials", role="operator")
async def list_credentials(at: Reader, args: Nothing, declared: Declarations | None) -> ListOf[Credential]:
    """List the credentials of workflow files; never their values."""
    ring = find_key_ring(_key_file(declared), at.database.settings)
    return ListOf([_line(row, ring) for row in await store.list_credentials(at.database)])


@operation("PUT /credentials/{name}", role="admin", secret=True)
async def set_credential(tx: Transaction, args: SetCredential, declared: Declarations | None) -> Credential:
    """Store a credential, or replace it. Nodes read it as `{{$credentials.NAME.FIELD}}`, or by `credentialName`."""
    check_name("credential", args.name)
    if not any(args.fields.values()):
        raise PayloadError(f"credential {args.name} would hold nothing: {', '.join(sorted(args.fields))} is empty")
    ring = require_key_ring(_key_file(declared), tx.database.settings)
    key_id, sealed = seal_fields(ring, args.fields, args.name)
    return _line(await store.set_credential(tx, args.name, sorted(args.fields), key_id, sealed), ring)


@operation("DELETE /credentials/{name}", role="admin")
async def delete_credential(tx: Transaction, args: CredentialRef) -> None:
    """Delete a credential: nodes that name it fail."""
    await store.delete_credential(tx, args.name)


@operation("POST /credentials/rotate", role="admin")
async def rotate_credentials(tx: Transaction, args: Nothing, declared: Declarations | None) -> CredentialsRotated:
    """Seal every credential again with the newest key; afterwards the older keys can be removed."""
    ring = require_key_ring(_key_file(declared), tx.database.settings)
    count = 0
    for row in await tx.fetch(store.LOCK_SEALED_BY_OTHERS, ring.newest):
        fields = open_fields(ring, row["key_id"], row["sealed"], row["name"])
        await tx.execute(store.RESEAL, row["name"], *seal_fields(ring, fields, row["name"]))
        count += 1
    await tx.audit("credential.rotate", "*", after={"key": ring.newest, "count": count})
    return CredentialsRotated(ring.newest, count)


def _key_file(declared: Declarations | None) -> str | None:
    return (load_settings() if declared is None else declared.settings).secret_key_file


def _line(row: Any, ring: KeyRing | None) -> Credential:
    readable = ring is not None and row["key_id"] in ring.keys
    return Credential(row["name"], list(row["fields"]), row["key_id"], row["changed_at"], row["changed_by"], readable)
