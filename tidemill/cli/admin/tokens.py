"""`tidemill token`: make, list and revoke API tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from cyclopts import App, Parameter
from rich.table import Table

from tidemill.cli.arguments import Json, options_of
from tidemill.cli.connection_options import ALL_APPLICATIONS, ANYWHERE, ServerOptions, TokenOptions
from tidemill.cli.render import ago, out, print_json, short, show, table
from tidemill.core.duration import parse_duration
from tidemill.ops.admin.tokens import (
    ROLE_HELP,
    CreateToken,
    Token,
    TokenRef,
    create_login_link,
    create_token,
    list_tokens,
    revoke_token,
)
from tidemill.ops.operator.operation import Nothing
from tidemill.store.access.tokens import login_url

token = App(name="token", help="Make, list and revoke API tokens.")


@token.command
@options_of(CreateToken, positional=("name",), without=("expires_in", "application"))
def create(
    args: CreateToken,
    *,
    role: Annotated[str, Parameter(help=ROLE_HELP)] = "viewer",
    expires: Annotated[str, Parameter(help="How long it is valid: 90d, 12h; or never to expire.")] = "90d",
    json: Json = False,
    connection: TokenOptions = ALL_APPLICATIONS,
) -> None:
    """Make an API token and print it: it is shown this once. With --application it is for this one only."""
    lasts = None if expires == "never" else parse_duration(expires, what="--expires")
    wanted = msgspec.structs.replace(args, role=role, application=connection.application, expires_in=lasts)
    made = connection.do(create_token, wanted)
    if json:
        return print_json({"secret": made.secret, **msgspec.structs.asdict(made.token)})
    print(made.secret, flush=True)
    row = made.token
    where = "" if row.application is None else f" of {row.application}"
    until = "" if row.expires_at is None else f", until {row.expires_at:%Y-%m-%d %H:%M} UTC"
    sys.stderr.write(f"token {row.id} for {row.name}: role {row.role}{where}{until}; it is not shown again\n")
    return None


@token.command
def link(
    *,
    url: Annotated[
        str, Parameter(help="The server's address, as the browser reaches it; a server with another port needs it.")
    ] = "http://127.0.0.1:7433",
    connection: ServerOptions = ANYWHERE,
) -> None:
    """Print a link that logs one browser in, once, as an admin."""
    made = connection.do(create_login_link, Nothing())
    server = connection.server_url or ""
    print(login_url(server if server.startswith("http") else url, made.secret), flush=True)


@token.command(name="list")
def list_command(*, json: Json = False, connection: ServerOptions = ANYWHERE) -> None:
    """List the tokens, newest first; never the tokens themselves."""
    rows = connection.do(list_tokens, Nothing()).items
    show(rows, tokens_table, json=json, none="no tokens: tidemill token create NAME --role admin")


@token.command
@options_of(TokenRef, positional=("id",))
def revoke(args: TokenRef, *, connection: ServerOptions = ANYWHERE) -> None:
    """Revoke a token for good, and log out the browsers that used it."""
    connection.do(revoke_token, args)
    out().print(f"token {args.id} is revoked")


def tokens_table(rows: Sequence[Token], now: datetime) -> Table:
    made = table("id", "name", "role", "application", "ends with", "made", "used", "state", numbers=("id",))
    for row in rows:
        made.add_row(
            str(row.id),
            row.name,
            row.role,
            row.application or "all",
            f"…{row.hint}",
            ago(row.created_at, now),
            ago(row.used_at, now),
            _state(row, now),
        )
    return made


def _state(row: Token, now: datetime) -> str:
    if row.revoked_at is not None:
        return f"revoked by {row.revoked_by}"
    if row.expires_at is None:
        return "valid"
    left = (row.expires_at - now).total_seconds()
    return f"valid for {short(left)}" if left > 0 else "expired"
