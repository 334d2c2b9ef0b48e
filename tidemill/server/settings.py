"""Where the server listens and which callers need a token. Unsafe combinations are refused before it listens."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

import msgspec

from tidemill.core.errors import ConfigError
from tidemill.core.web.address import is_loopback, read_address
from tidemill.server.oidc_settings import OidcSettings

LOOPBACK = "127.0.0.1"
PORT = 7433
GRPC_PORT = 7434


class ServerSettings(msgspec.Struct, frozen=True):
    """How to serve. The defaults are for one person on one machine."""

    host: str = LOOPBACK
    port: int = PORT
    or_any_port: bool = False
    """If the port is taken, listen on any free one."""
    listening: int | None = None
    """The number of a socket that listens already, which the process that started this one has opened."""
    read_only: bool = False
    """Refuse every change, also with an admin token."""
    trust_local: bool = False
    """Treat every process on this machine as an admin, without a token: also those of other users."""
    socket: str | None = None
    """A Unix socket for commands of the user that runs the server: only that user can open it, without a token."""
    tls_cert: str | None = None
    tls_key: str | None = None
    behind_proxy: bool = False
    """A proxy in front terminates TLS and names the client's address."""
    proxies: tuple[str, ...] = ()
    """The addresses or networks of the trusted proxies; this machine if none is named."""
    plain_http: bool = False
    """Serve other machines without TLS: anyone who can read the traffic can read the tokens."""
    names: tuple[str, ...] = ()
    """Other host names that requests may name."""
    grpc: str | None = None
    """Where to serve gRPC as well, such as 127.0.0.1:7434; None for no gRPC."""
    oidc: OidcSettings | None = None
    """Where users log in besides with a token; None for tokens only."""
    most_body: int = 1_048_576
    session_hours: float = 12.0

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host) and (self.grpc is None or is_loopback(self.grpc_address[0]))

    @property
    def grpc_address(self) -> tuple[str, int]:
        """Host and port of gRPC."""
        try:
            return read_address(self.grpc or str(GRPC_PORT))
        except ConfigError as error:
            raise ConfigError(f"--grpc {self.grpc!r} is not an address: write host:port, or only a port") from error

    @property
    def asks_login(self) -> bool:
        """Whether a request over the network needs a token or a session; loopback is a network like any other."""
        return not self.trust_local

    @property
    def is_tls(self) -> bool:
        """Whether browsers come over TLS."""
        return self.tls_cert is not None or self.behind_proxy

    @property
    def url(self) -> str:
        shown = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls_cert else 'http'}://{shown}:{self.port}"

    def validate(self) -> ServerSettings:
        if not 0 <= self.port < 65_536:
            raise ConfigError(f"port {self.port} is not a port: use 1 to 65535, or 0 for any that is free")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("TLS needs both --tls-cert and --tls-key")
        if not self.is_local and not (self.is_tls or self.plain_http):
            open_to_all = self.host if not is_loopback(self.host) else self.grpc_address[0]
            raise ConfigError(
                f"{open_to_all} can be reached by other machines: give --tls-cert and --tls-key, or say --behind-proxy "
                "if a proxy in front ends TLS, or --plain-http if tokens may be read on the way"
            )
        if self.trust_local and (not self.is_local or self.behind_proxy):
            raise ConfigError(
                "--trust-local is for a server that only this machine can reach: leave it out, "
                "and log in with a token (`tidemill token create NAME`)"
            )
        if self.proxies and not self.behind_proxy:
            raise ConfigError("--proxy names a proxy to trust: say --behind-proxy as well")
        if self.behind_proxy and not self.proxies and not is_loopback(self.host):
            raise ConfigError(
                f"a proxy that reaches {self.host} may be any machine: name its address with --proxy, "
                "so that only its word about the client's address is trusted"
            )
        if self.grpc is not None and not is_loopback(self.grpc_address[0]) and not (self.tls_cert or self.plain_http):
            raise ConfigError(
                f"gRPC at {self.grpc} can be reached by other machines, and no proxy ends TLS for it: "
                "give --tls-cert and --tls-key, or --plain-http if tokens may be read on the way"
            )
        return self


def check_proxies(proxies: Iterable[str]) -> tuple[str, ...]:
    """Addresses and networks of proxies."""
    found = tuple(proxies)
    for each in found:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise ConfigError(f"--proxy {each!r} is not an address or a network, such as 10.0.0.4: {error}") from error
    return found


def check_names(names: Iterable[str]) -> tuple[str, ...]:
    """Host names as they may stand in a request."""
    found = tuple(names)
    for name in found:
        if not name or "/" in name or " " in name:
            raise ConfigError(f"{name!r} is not a host's name")
    return found
