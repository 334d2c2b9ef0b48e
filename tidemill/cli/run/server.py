"""`tidemill server`: the HTTP API and the live stream of changes; `tidemill token`: who may come in."""

from __future__ import annotations

from tidemill.cli.arguments import Application
from tidemill.cli.connection_options import HERE, ConnectionOptions, require_database
from tidemill.cli.run.roles import Part, application, play
from tidemill.engine.role import Role
from tidemill.server.settings import LOOPBACK, PORT, ServerSettings, check_names, check_proxies


def server(
    app: Application,
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
    place: ConnectionOptions = HERE,
) -> int:
    """Serve the HTTP API of an application under /api/v1, at this machine only unless told otherwise.

    Parameters
    ----------
    host
        Where to listen. What other machines can reach needs a token to come in, and TLS.
    port
        The port; 0 for any that is free.
    or_any_port
        Take any port that is free, if this one is taken.
    read_only
        Refuse every change, also with an admin token.
    login
        Ask for a token on this machine too.
    tls_cert
        A file with the certificate, for TLS.
    tls_key
        A file with its key.
    behind_proxy
        A proxy in front ends TLS.
    proxy
        The address of that proxy, whose X-Forwarded headers are trusted; may be repeated.
    plain_http
        Serve other machines without TLS: anyone who can read the traffic can read the tokens.
    name
        A host name by which browsers ask for it; may be repeated.
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

    def make() -> Part:
        from tidemill.server.fair_pool import FairDatabase
        from tidemill.server.role import ApiServer  # Here, for it takes a while, and no other command needs it.

        known = application(app, place)
        require_database(known.settings)
        database = FairDatabase(known.settings.database(), label=f"tidemill server {known.name}")
        return Part(Role(ApiServer(known, database, wanted, on_url=_say), database), database, known.settings)

    return play(make)


def _say(url: str) -> None:
    print(f"serving {url}", flush=True)
