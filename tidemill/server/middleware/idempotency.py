"""Requests with an `Idempotency-Key`: a repeated request acts once and gets the first one's answer.

Operations claim their key in the transaction that acts (`store/access/idempotency.py`). For other requests, which an
application's own pages handle, the key is leased while the handler runs, and refused (409) to others. If the server
dies, the lease lapses and the request can be sent again: handlers of an application's own act at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from typing import TYPE_CHECKING, Any

from tidemill.core.accounts import Caller
from tidemill.core.errors import StoreError
from tidemill.ops.operator.registry import all_operations
from tidemill.server.problems import Refused
from tidemill.store.access.idempotency import (
    LEASE_SECONDS,
    AnsweredError,
    IdempotencyKey,
    drop_answer,
    keep_answer,
    lease_key,
    renew_key,
)
from tidemill.store.database import Database

if TYPE_CHECKING:
    from tidemill.server.middleware.middleware import Reply

KEY = "tidemill.idempotency"
REPLAYED = (b"idempotency-replayed", b"true")
MOST_KEY = 200

#: Its answer holds a secret, as those of some operations do, and a stored answer can be read in the database.
SESSION = "/api/v1/session"


def check_idempotency_key(key: str, *, is_secret: bool) -> None:
    """Refuse a key that cannot be stored, or that comes with a request whose answer is never kept."""
    if not key or len(key) > MOST_KEY or not key.isprintable() or not key.isascii():
        raise Refused(422, f"an Idempotency-Key has 1 to {MOST_KEY} printable characters")
    if is_secret:
        raise Refused(422, "this answer holds a secret and is never kept: send it without an Idempotency-Key")


class IdempotentRequests:
    """Runs a request once per key and repeats its answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        operations = all_operations()
        self._secret = {SESSION, *(f"/api/v1{each.path}" for each in operations if each.secret)}
        paths = (re.sub(r"\\\{\w+\\\}", ".+", re.escape(each.path)) for each in operations if each.method == "POST")
        self._operation = re.compile(rf"/api/v1(?:{'|'.join(paths)})\Z")

    async def once(
        self, inner: Any, scope: Any, body: bytes, receive: Any, reply: Reply, caller: Caller, key: str
    ) -> None:
        """Run a request if it is the first with its key, or repeat the answer. Its `body` has been read."""
        path = "/" + "/".join(part for part in scope["path"].split("/") if part)
        check_idempotency_key(key, is_secret=path in self._secret)
        request = hashlib.sha256(
            b"\0".join((scope["method"].encode(), scope["path"].encode(), scope["query_string"], body))
        ).digest()
        claim = IdempotencyKey(caller.name, key, request)
        if self._operation.match(path):
            scope[KEY] = claim
            await inner(scope, replay_body(body, receive), reply)
            return
        try:
            await lease_key(self._database, claim)
        except AnsweredError as before:
            await reply.whole(before.status, before.body, [REPLAYED])
            return
        reply.before_end = lambda: self._keep(claim, reply)
        renewing = asyncio.create_task(self._renew(claim))
        try:
            await inner(scope, replay_body(body, receive), reply)
        finally:
            renewing.cancel()

    async def _keep(self, claim: IdempotencyKey, reply: Reply) -> None:
        """Store the answer before the client gets it: a client that repeats its request finds it."""
        reply.before_end = None  # A problem that is sent if this fails is not stored.
        if reply.status is not None and reply.status < 400:
            async with self._database.transaction(patience=5.0) as connection:
                await keep_answer(self._database, connection, claim, reply.status, reply.body)
        elif reply.status is not None and reply.status < 500:
            await drop_answer(self._database, claim)

    async def _renew(self, claim: IdempotencyKey) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            with contextlib.suppress(StoreError):  # The next renewal may reach the database again.
                await renew_key(self._database, claim)


def replay_body(body: bytes, receive: Any) -> Any:
    """A `receive` that gives a body which was read already."""
    given = False

    async def again() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
