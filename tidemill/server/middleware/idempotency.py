"""Requests with an `Idempotency-Key`: the same one again acts once, and gets the answer that the first one got.

The key is claimed before anything is done, in a transaction of its own. An operation that runs in one transaction keeps
its answer in it (`ops/local.py`); the answers of all other requests are kept after. A request that was cut off in
between is never done twice: the next one with its key is told so (409).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from tidemill.ops.operator.local import Caller
from tidemill.ops.operator.registry import all_operations
from tidemill.server.problems import Refused
from tidemill.store.database import Database
from tidemill.store.idempotency import claim_answer, drop_answer, keep_answer

if TYPE_CHECKING:
    from tidemill.server.middleware.middleware import Reply

KEY = "tidemill.idempotency"
KEPT = "tidemill.kept"
REPLAYED = (b"idempotency-replayed", b"true")
MOST_KEY = 200

#: Its answer holds a secret, as those of some operations do, and an answer that is kept can be read in the database.
SESSION = "/api/v1/session"


class IdempotentRequests:
    """Repeats the answers of requests that were sent before."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._secret = {SESSION, *(f"/api/v1{each.path}" for each in all_operations() if each.secret)}

    async def once(self, inner: Any, scope: Any, body: bytes, reply: Reply, caller: Caller, key: str) -> None:
        """Run a request if it is the first with its key, or repeat the answer."""
        if not key or len(key) > MOST_KEY or not key.isprintable() or not key.isascii():
            raise Refused(422, f"an Idempotency-Key has 1 to {MOST_KEY} printable characters")
        if "/" + "/".join(part for part in scope["path"].split("/") if part) in self._secret:
            raise Refused(422, "this answer holds a secret and is never kept: send it without an Idempotency-Key")
        what = hashlib.sha256(
            b"\0".join((scope["method"].encode(), scope["path"].encode(), scope["query_string"], body))
        ).digest()
        before = await claim_answer(self._database, caller.name, key, what)
        if before is None:
            scope[KEY] = key
            await inner(scope, _given(body), reply)
            if KEPT not in scope:
                await self._keep(caller.name, key, reply)
        elif before.request != what:
            raise Refused(422, f"the key {key!r} came with another request before: use a new one")
        elif before.status is None or before.body is None:
            raise Refused(
                409, f"the first request with key {key!r} has not been answered: see what it did, then use a new key"
            )
        else:
            await reply.whole(before.status, before.body, [REPLAYED])

    async def _keep(self, who: str, key: str, reply: Reply) -> None:
        if reply.status is not None and reply.status < 400:
            await keep_answer(self._database, who, key, reply.status, reply.body)
        elif reply.status is not None and reply.status < 500:
            await drop_answer(self._database, who, key)


def _given(body: bytes) -> Any:
    told = False

    async def receive() -> Any:
        nonlocal told
        if told:
            return {"type": "http.disconnect"}
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
