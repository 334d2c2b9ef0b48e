"""`tidemill credentials`: secrets for workflow files. Values come from standard input, never from the command line."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ANYWHERE, ServerOptions
from tidemill.cli.render import ago, out, print_json, show, table
from tidemill.core.codec import decode
from tidemill.core.errors import ConfigError, PayloadError
from tidemill.ops.admin.credentials import (
    Credential,
    CredentialRef,
    SetCredential,
    delete_credential,
    list_credentials,
    rotate_credentials,
    set_credential,
)
from tidemill.ops.operator.operation import Nothing
from tidemill.store.access.key_ring import new_key

commands = App(name="credentials", help="Credentials: secrets for workflow files, sealed in the database.")


@commands.default
def list_command(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List the credentials; never their values."""
    rows = connection.do(list_credentials, Nothing()).items
    show(rows, credentials_table, json=json, none="no credentials: tidemill credentials set NAME FIELD")


@commands.command(name="set")
def set_command(
    name: Annotated[str, Parameter(help="The credential, as files name it.")],
    *fields: Annotated[str, Parameter(help="Its fields, each asked for: token, or user password.")],
    json: Json = False,
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Store a credential: each field is asked for, or a JSON object of them is read from standard input."""
    made = connection.do(set_credential, SetCredential(name=name, fields=_read(fields)))
    if json:
        return print_json(made)
    out().print(f"credential {made.name} is stored: {', '.join(made.fields)}, sealed with key {made.key_id}")
    return None


@commands.command
@options_of(CredentialRef, positional=("name",))
def delete(args: CredentialRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """Delete a credential: nodes that name it fail."""
    connection.do(delete_credential, args)
    out().print(f"credential {args.name} is deleted")


@commands.command
def rotate(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """Seal every credential again with the newest key; afterwards the older keys can be removed."""
    made = connection.do(rotate_credentials, Nothing())
    if json:
        return print_json(made)
    out().print(f"{made.count:,} credentials are sealed again, with key {made.key_id}")
    return None


@commands.command
def key() -> None:
    """Print a new key for TIDEMILL_SECRET_KEYS or a key file."""
    print(new_key(), flush=True)


def credentials_table(rows: Sequence[Credential], now: datetime) -> Table:
    made = table("name", "fields", "key", "changed", "by", "state")
    for row in rows:
        state = "readable" if row.readable else "no key here"
        made.add_row(row.name, ", ".join(row.fields), row.key_id, ago(row.changed_at, now), row.changed_by, state)
    return made


def _read(fields: Sequence[str]) -> dict[str, str]:
    if fields and sys.stdin.isatty():
        return {field: getpass.getpass(f"{field}: ") for field in fields}
    text = sys.stdin.read()
    if len(fields) == 1:
        return {fields[0]: text.rstrip("\r\n")}
    try:
        return decode(text, dict[str, str])
    except PayloadError as error:
        message = 'standard input is not a JSON object of texts, such as {"token": "…"}'
        raise ConfigError(f"{message}: {error}") from None
