"""Webhooks of other services: a right signature runs a workflow file, without a token."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import structlog
from litestar import Request, Response, post
from litestar.params import FromPath

from tidemill.core.accounts import Caller
from tidemill.core.errors import ConfigError, ForbiddenError, NotFoundError
from tidemill.core.web.webhook_signature import SignatureError, verify_webhook
from tidemill.ops.operator.validation import read_value
from tidemill.ops.pipelines.triggers import RunTrigger, run_trigger
from tidemill.server.json_response import JsonBytes
from tidemill.server.middleware.authentication import OPEN
from tidemill.server.middleware.idempotency import REPLAYED
from tidemill.server.problems import Refused
from tidemill.server.server_state import ServerState, TheServerState
from tidemill.store.access.idempotency import AnsweredError, IdempotencyKey

log = structlog.get_logger("tidemill.server")

AUDIT_EVERY = 60.0  # Strangers must not fill the audit trail.


@post("/webhooks/{name:str}", opt={"role": OPEN}, status_code=202, summary="Run a workflow by a signed webhook")
async def take_webhook(
    request: Request[Any, Any, Any], server_state: TheServerState, name: FromPath[str]
) -> Response[Any]:
    """Run a workflow once, with the JSON of the request as its event, if it is signed as the workflow declares.

    The signature is all that a sender needs: it may run the workflow, also one that needs an admin.
    A request with a signed time or a delivery id that is sent twice runs once.
    """
    if server_state.settings.read_only:
        raise ForbiddenError("this server is read-only: it was started with --read-only")
    workflow = server_state.app.pipelines.triggers.get(name)
    if workflow is None or workflow.signature is None:
        raise NotFoundError(f"there is no workflow {name!r} whose webhook declares a signature")
    body = await request.body()
    headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in request.scope["headers"]}
    try:
        once = verify_webhook(workflow.signature, headers, body, now=time.time())
    except SignatureError as error:
        await _note_refusal(server_state, name, str(error), request)
        raise Refused(401, f"the webhook was refused: {error}", WWW_Authenticate="Signature") from error
    except ConfigError as error:
        log.error("a webhook cannot be checked", workflow=name, error=str(error))
        raise Refused(503, "this webhook cannot be checked now: the server's log says why", Retry_After="60") from error
    caller = Caller(f"webhook {name}", "admin")
    key = None if once is None else IdempotencyKey(caller.name, once, hashlib.sha256(body).digest())
    try:
        args = RunTrigger(name=name, payload=read_value(body))
        return JsonBytes(await server_state.local(caller, key=key).answer(run_trigger, args), run_trigger.status)
    except AnsweredError as before:
        return JsonBytes(before.body, before.status, headers=[REPLAYED])


async def _note_refusal(server_state: ServerState, name: str, why: str, request: Request[Any, Any, Any]) -> None:
    client = request.client.host if request.client else "?"
    log.warning("a webhook was refused", workflow=name, reason=why, client=client)
    now, last = time.monotonic(), server_state.refused_webhooks.get(name, -AUDIT_EVERY)
    if now - last >= AUDIT_EVERY:
        server_state.refused_webhooks[name] = now
        caller = Caller(f"webhook {name}", "viewer")
        await server_state.note(caller, "webhook.refuse", name, after={"reason": why, "client": client})


routes = [take_webhook]
