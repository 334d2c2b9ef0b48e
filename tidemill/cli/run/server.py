"""`tidemill server`: the HTTP API, the console and the live stream of changes."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from tidemill.cli.connection_options import HERE, ConnectionOptions
from tidemill.cli.run.processes import run_server
from tidemill.server.oidc_settings import read_oidc_settings
from tidemill.server.settings import LOOPBACK, PORT, ServerSettings, check_names, check_proxies


def server(
    *apps: Annotated[
        str, Parameter(help="The application: app.py, app.py:name or package.module; with --all any number of them.")
    ],
    all_applications: Annotated[
        bool,
        Parameter(
            name="--all",
            negative=(),
            help="Serve every application of the database. Those whose code is named can also be started from here.",
        ),
    ] = False,
    host: Annotated[
        str, Parameter(help="Where to listen. An address that other machines can reach needs TLS.")
    ] = LOOPBACK,
    port: Annotated[int, Parameter(help="The port; 0 for any free one.")] = PORT,
    or_any_port: Annotated[bool, Parameter(help="Take any free port if this one is taken.")] = False,
    read_only: Annotated[bool, Parameter(help="Refuse every change, also with an admin token.")] = False,
    trust_local: Annotated[
        bool,
        Parameter(help="Let every process on this machine do everything without a token, also those of other users."),
    ] = False,
    tls_cert: Annotated[str | None, Parameter(help="A file with the certificate, for TLS.")] = None,
    tls_key: Annotated[str | None, Parameter(help="A file with its key.")] = None,
    behind_proxy: Annotated[bool, Parameter(help="A proxy in front terminates TLS.")] = False,
    proxy: Annotated[
        list[str] | None,
        Parameter(help="The address of that proxy, whose word about the client's address is trusted; may be repeated."),
    ] = None,
    plain_http: Annotated[
        bool, Parameter(help="Serve other machines without TLS: anyone who can read the traffic can read the tokens.")
    ] = False,
    name: Annotated[list[str] | None, Parameter(help="A host name that requests may name; may be repeated.")] = None,
    grpc: Annotated[
        str | None,
        Parameter(
            help="Serve gRPC as well at this address, such as 127.0.0.1:7434, with the same tokens and certificate."
        ),
    ] = None,
    oidc_issuer: Annotated[
        str | None,
        Parameter(help="Let users log in at this OpenID Connect provider as well.", env_var="TIDEMILL_OIDC_ISSUER"),
    ] = None,
    oidc_client_id: Annotated[
        str | None,
        Parameter(help="The id that the provider has given to this application.", env_var="TIDEMILL_OIDC_CLIENT_ID"),
    ] = None,
    oidc_client_secret_file: Annotated[
        str | None,
        Parameter(
            help="A file with the client's secret; or set TIDEMILL_OIDC_CLIENT_SECRET. A public client has none.",
            env_var="TIDEMILL_OIDC_CLIENT_SECRET_FILE",
        ),
    ] = None,
    oidc_role: Annotated[
        list[str] | None,
        Parameter(
            help="Which role a claim gives, as CLAIM=VALUE:ROLE or CLAIM=VALUE:ROLE@APPLICATION; may be repeated.",
            env_var="TIDEMILL_OIDC_ROLE",
        ),
    ] = None,
    oidc_scope: Annotated[
        list[str] | None,
        Parameter(
            help="A scope to ask the provider for, besides openid; profile and email if not given. May be repeated.",
            env_var="TIDEMILL_OIDC_SCOPE",
        ),
    ] = None,
    oidc_label: Annotated[
        str | None,
        Parameter(help="What the button of the log-in page calls the provider.", env_var="TIDEMILL_OIDC_LABEL"),
    ] = None,
    listening: Annotated[int | None, Parameter(show=False)] = None,  # an open socket, from `tidemill dev`
    with_maintenance: Annotated[bool, Parameter(show=False, negative=())] = False,  # for `tidemill up`
    connection: ConnectionOptions = HERE,
) -> int:
    """Serve the console and the HTTP API of an application, or of all; by default to this machine only.

    It prints a link that logs one browser in. Requests need a token or such a log-in; commands of your own user need
    neither with --server unix:DIRECTORY/NAME.server.sock.
    """
    wanted = ServerSettings(
        host=host,
        port=port,
        or_any_port=or_any_port,
        listening=listening,
        read_only=read_only,
        trust_local=trust_local,
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_proxy=behind_proxy,
        proxies=check_proxies(proxy or ()),
        plain_http=plain_http,
        names=check_names(name or ()),
        grpc=grpc,
        oidc=read_oidc_settings(
            oidc_issuer,
            oidc_client_id,
            roles=oidc_role or (),
            secret=os.environ.get("TIDEMILL_OIDC_CLIENT_SECRET"),
            secret_file=oidc_client_secret_file,
            label=oidc_label,
            scopes=oidc_scope or (),
        ),
    ).validate()

    return run_server(
        apps,
        given=connection.arguments(),
        settings=wanted,
        all_applications=all_applications,
        with_maintenance=with_maintenance,
    )
