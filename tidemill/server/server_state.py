"""What every route works with: the application, its database, the live changes, and the caller."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any

from litestar.di import NamedDependency
from litestar.params import SkipValidation

from tidemill.app import App
from tidemill.core.accounts import Caller, Grants, role_in
from tidemill.engine.authentication import Authenticator
from tidemill.engine.telemetry.exposition import Exposition
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Operation
from tidemill.pipelines.view.pipeline_cache import PipelineCache
from tidemill.server.live.hub import Hub
from tidemill.server.oidc import OidcClient
from tidemill.server.settings import ServerSettings
from tidemill.store.access.audit import write_audit
from tidemill.store.access.idempotency import IdempotencyKey
from tidemill.store.access.tokens import create_server_token
from tidemill.store.database import Database
from tidemill.store.states.states import STATES_CHANNEL

if TYPE_CHECKING:
    from litestar import Request

    from tidemill.server.many_applications import ManyApplications

_HOST = socket.gethostname()
LIVE_TOKEN_LASTS = 24 * 3600.0


class ServerState:
    """What the routes of one server share."""

    def __init__(self, app: App, database: Database, settings: ServerSettings) -> None:
        self.app = app
        self.database = database
        self.settings = settings
        self.oidc = None if settings.oidc is None else OidcClient(settings.oidc)
        version = None if settings.oidc is None else settings.oidc.version
        self.authenticator = Authenticator(database, app.name, trust_local=settings.trust_local, provider=version)
        self.hub = Hub(database, self.authenticator)
        app.pipelines.cache = PipelineCache(database, app.pipelines, is_server=True)
        self.hub.callbacks[STATES_CHANNEL] = app.pipelines.cache.on_notify
        self.metrics = Exposition(database)
        self.applications: ManyApplications | None = None
        """All applications of the database, if this server serves them."""
        self._live_token: tuple[float, str] | None = None
        self.refused_webhooks: dict[str, float] = {}
        """When the refusal of a workflow's webhook was last written to the audit trail."""

    async def of_account(self, grants: Grants) -> ServerState:
        """The state of the application that an account logs in to: this one, or the first in which it has a role."""
        if self.applications is None or role_in(grants, self.app.name) is not None:
            return self
        names = self.applications.of(grants)
        return await self.applications.state_of(names[0]) if names else self

    def local(self, caller: Caller, *, key: IdempotencyKey | None = None) -> Local:
        """Does operations on behalf of a caller."""
        return Local(self.database, caller, self.app.declarations, key=key)

    async def live_token(self) -> str:
        """The token with which this server forwards live requests to dispatchers."""
        now = time.monotonic()
        if self._live_token is None or now > self._live_token[0]:
            name = f"live requests of the server on {_HOST}"[:100]
            secret = await create_server_token(self.database, name, self.app.name, lasts=LIVE_TOKEN_LASTS)
            self._live_token = (now + LIVE_TOKEN_LASTS / 2, secret)
        return self._live_token[1]

    def forget_live_token(self) -> None:
        self._live_token = None

    def after(self, operation: Operation[Any, Any]) -> None:
        """Do what the server itself must do once an operation has been done."""
        if operation.name in ("revoke_token", "end_session"):
            self.authenticator.forget()

    async def note(
        self, caller: Caller, action: str, target: str, *, before: object = None, after: object = None
    ) -> None:
        """Write an audit entry for an action that writes none itself."""
        async with self.database.transaction(patience=30.0) as connection:
            await write_audit(
                self.database, connection, who=caller.name, action=action, target=target, before=before, after=after
            )


#: How a handler gets the state: `server_state: TheServerState`.
TheServerState = NamedDependency[SkipValidation[ServerState]]


def caller_of(request: Request[Any, Any, Any]) -> Caller:
    """The authenticated caller of a request."""
    return request.scope["tidemill.caller"]  # pyright: ignore[reportGeneralTypeIssues]
