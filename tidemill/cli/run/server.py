"""`tidemill server`: the HTTP API and the live stream of changes; `tidemill token`: who may come in."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Annotated, Any

from cyclopts import App as Commands
from cyclopts import Parameter

from tidemill.cli.connection_options import HERE, Place, opened, operator, require_database
from tidemill.cli.render import ago, out, plain, print_json, table
from tidemill.cli.run.roles import Part, application, play
from tidemill.core.duration import parse_duration
from tidemill.core.errors import ConfigError
from tidemill.engine.role import Role
from tidemill.server.settings import LOOPBACK, PORT, ServerSettings, check_names, check_proxies
from tidemill.store.tokens import create_token, list_tokens, revoke_token

token = Commands(name="token", help="Make, list and revoke API tokens.")


def server(
    app: str,
    /,
    *,
    host: str = LOOPBACK,
    port: int = PORT,
    or_any_port: bool = False,
    read_only: bool = False,
    login: bool = False,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    behind_proxy: bool = False,
    proxy: list[str] | None = None,
    plain_http: bool = False,
    name: list[str] | None = None,
    grpc: str | None = None,
    place: Place = HERE,
) -> int:
    """Serve the HTTP API of an application under /api/v1, at this machine only unless told otherwise.

    Parameters
    ----------
    app
        The application: app.py, app.py:name or package.module.
    host
        Where to listen. What other machines can reach needs a token to come in, and TLS.
    port
        The port; 0 for any that is free.
    or_any_port
        Take any port that is free, if this one is taken.
    read_only
        Let nobody change anything, whatever their token says.
    login
        Ask for a token on this machine too.
    tls_cert
        A file with the certificate, for TLS.
    tls_key
        A file with its key.
    behind_proxy
        A proxy in front ends TLS.
    proxy
        The address of that proxy, which is believed when it says who asks; say it again for more.
    plain_http
        Serve other machines without TLS: whoever is on the way can read tokens.
    name
        A host name by which browsers ask for it; say it again for more.
    grpc
        Serve gRPC as well at this address, such as 127.0.0.1:7434, with the same tokens and certificate.
    """
    wanted = ServerSettings(
        host=host,
        port=port,
        or_any_port=or_any_port,
        read_only=read_only,
        login=login,
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_proxy=behind_proxy,
        proxies=check_proxies(proxy or ()),
        plain_http=plain_http,
        names=check_names(name or ()),
        grpc=grpc,
    ).validate()

    def cast() -> Part:
        from tidemill.server.fair_pool import FairDatabase
        from tidemill.server.role import Server  # Here, for it takes a while, and no other command needs it.

        known = application(app, place)
        require_database(known.settings)
        database = FairDatabase(known.settings.database(), application=f"tidemill server {known.name}")
        return Part(Role(Server(known, database, wanted, on_url=_say), database), database, known.settings)

    return play(cast)


@token.command
def create(
    name: str,
    /,
    *,
    scope: str = "read",
    expires: Annotated[str, Parameter(help="After how long it is good no more: 90d, 12h; or never.")] = "90d",
    json: bool = False,
    place: Place = HERE,
) -> None:
    """Make an API token and print it: it is shown this once.

    Parameters
    ----------
    name
        Who or what it is for, as the audit trail will say.
    scope
        read (look), operate (act on jobs, runs and workers) or admin (tokens as well).
    json
        Print one JSON document.
    """
    lasts = None if expires == "never" else parse_duration(expires, what="--expires")

    async def make() -> tuple[str, Any]:
        async with opened(place.settings()) as database:
            return await create_token(database, name, scope, by=operator(), expires_in=lasts)

    secret, row = asyncio.run(make())
    if json:
        return print_json({"secret": secret, **plain(dict(row))})
    print(secret, flush=True)
    until = "" if row["expires_at"] is None else f", until {row['expires_at']:%Y-%m-%d %H:%M} UTC"
    sys.stderr.write(f"token {row['id']} for {row['name']}: scope {row['scope']}{until}; it is not shown again\n")
    return None


@token.command(name="list")
def list_command(*, json: bool = False, place: Place = HERE) -> None:
    """List the tokens, newest first; never the tokens themselves.

    Parameters
    ----------
    json
        Print one JSON document.
    """

    async def look() -> list[dict[str, Any]]:
        async with opened(place.settings()) as database:
            return [dict(row) for row in await list_tokens(database)]

    rows = asyncio.run(look())
    if json:
        return print_json([plain(row) for row in rows])
    if not rows:
        return out().print("no tokens: tidemill token create NAME --scope admin", style="dim")
    made, now = table("id", "name", "scope", "ends with", "made", "used", "state", numbers=("id",)), datetime.now(UTC)
    for row in rows:
        cells = (str(row["id"]), row["name"], row["scope"], f"…{row['hint']}", ago(row["created_at"], now))
        made.add_row(*cells, ago(row["used_at"], now), _state(row, now))
    return out().print(made)


@token.command
def revoke(id: int, /, *, place: Place = HERE) -> None:
    """Take a token back for good, and log out the browsers that used it.

    Parameters
    ----------
    id
        The token, as `tidemill token list` shows it.
    """
    if not 0 < id < 2**63:
        raise ConfigError(f"{id} is not a token's number")

    async def take() -> str:
        async with opened(place.settings()) as database:
            return await revoke_token(database, id, by=operator())

    out().print(f"token {id} for {asyncio.run(take())} is revoked")


def _say(url: str) -> None:
    print(f"serving {url}", flush=True)


def _state(row: dict[str, Any], now: datetime) -> str:
    if row["revoked_at"] is not None:
        return f"revoked by {row['revoked_by']}"
    if row["expires_at"] is None:
        return "good"
    return f"good, expires {ago(row['expires_at'], now)}" if row["expires_at"] > now else "expired"
