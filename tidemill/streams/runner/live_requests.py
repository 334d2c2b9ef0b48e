"""Live requests: they run the same plans ahead of any backlog and return the result.

`LiveRequests` numbers requests, sends them to an engine, waits for the answer, and rejects requests when too many are
open. `server/stream_endpoint` receives them over gRPC and HTTP.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterable, Mapping

import msgspec
import structlog

from tidemill.core.errors import TidemillError
from tidemill.streams.definition.message import EngineAnswer
from tidemill.streams.definition.stream import Stream
from tidemill.streams.reducer.source_limits import SourceLimits
from tidemill.streams.reducer.token_bucket import TokenBucket
from tidemill.streams.runner.engine_pool import EnginePool
from tidemill.streams.runner.link import DeliveryDetails, MessageWork

log = structlog.get_logger("tidemill.streams")


class LiveError(TidemillError):
    """A live request without a result. `status` is one word for programs."""

    status = "failed"


class SaturatedError(LiveError):
    """Too many requests are open: retry later."""

    status = "saturated"


class NoTokenError(LiveError):
    """The request has no valid token."""

    status = "unauthenticated"


class NotPermittedError(LiveError):
    """The role of the token is not enough, or it is for another application."""

    status = "forbidden"


class UnavailableError(LiveError):
    """No engine is ready: retry later."""

    status = "unavailable"


class InvalidError(LiveError):
    """The request is invalid: do not retry it."""

    status = "invalid"


class LateError(LiveError):
    """The deadline passed before there was a result."""

    status = "deadline"


class LiveResult(msgspec.Struct, frozen=True):
    """The results by plan and task, as JSON, and the errors of the plans that failed."""

    result: bytes
    failures: dict[str, str]


class LiveRequests:
    """The open live requests of a dispatcher."""

    def __init__(self, stream: Stream, engines: EnginePool) -> None:
        self._stream = stream
        self._engines = engines
        self._known = {plan.eligibility for plan in stream.plans}
        self._numbers = itertools.count(-1, -1)
        self._answers: dict[int, asyncio.Future[EngineAnswer]] = {}
        self.closing = asyncio.Event()
        """Set at the first moment of a drain: from then on requests are refused."""
        self.limits = SourceLimits(1.0, enabled=True, max_qps=stream.live_qps)
        self._bucket: TokenBucket | None = None
        self._throttled = 0
        self._apply_limits(time.monotonic())
        self.done = 0
        self.shed = 0

    @property
    def open(self) -> int:
        return len(self._answers)

    async def ask(
        self,
        payload: bytes,
        eligibilities: Iterable[str],
        *,
        timeout: float | None = None,
        headers: Mapping[str, bytes] | None = None,
    ) -> LiveResult:
        """Run plans on a payload now."""
        wanted = tuple(eligibilities)
        unknown = [each for each in wanted if each not in self._known]
        if unknown or not wanted:
            known = ", ".join(sorted(filter(None, self._known)))
            raise InvalidError(f"no plan has the eligibility {unknown[0] if unknown else ''!r}; known are {known}")
        if self.closing.is_set():
            raise UnavailableError(f"stream {self._stream.name} is stopping")
        if not self.limits.enabled:
            raise UnavailableError(
                f"an operator switched live requests of stream {self._stream.name} off: "
                f"`tidemill stream enable {self._stream.name} live`"
            )
        if len(self._answers) >= self._stream.live:
            self.shed += 1
            raise SaturatedError(f"stream {self._stream.name} has {self._stream.live} live requests open already")
        if self._bucket is not None:
            now = time.monotonic()
            if not self._bucket.available(now):
                self.shed += 1
                self._throttled += 1
                raise SaturatedError(
                    f"stream {self._stream.name} takes at most {self.limits.max_qps:g} live requests a second"
                )
            self._bucket.take(1, now)
        deadline = None if timeout is None else time.time() + timeout
        details = DeliveryDetails(headers=tuple((headers or {}).items()) or None, at=time.time(), deadline=deadline)
        try:
            async with asyncio.timeout(timeout):
                answer = await self._send(payload, wanted, details)
        except TimeoutError:
            raise LateError(f"no result within {timeout:g} s") from None
        return _result(answer)

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    def close(self) -> None:
        """Take no more requests; those that are open are answered."""
        self.closing.set()

    # -- limits -----------------------------------------------------------------------------------

    def set_limits(self, now: float, *, max_qps: float | None, burst: float | None, enabled: bool) -> None:
        """Change the limit of live requests, and switch them on or off."""
        self.limits.set_rate(max_qps, burst)
        self.limits.enabled = enabled
        self._apply_limits(now)

    def set_part(self, rate: float | None, now: float) -> None:
        """Change the part of the limit that this dispatcher may use."""
        if self.limits.awaits_part:
            self._bucket = None  # The first part of a limit begins with its burst.
        self.limits.qps_part, self.limits.awaits_part = rate, False
        self._apply_limits(now)

    def await_part(self, now: float) -> None:
        """Reject requests until their limit has been divided among the dispatchers."""
        self.limits.await_part()
        self._apply_limits(now)

    def take_throttled(self) -> int:
        """How many requests the limit has rejected since the last call."""
        count, self._throttled = self._throttled, 0
        return count

    def _apply_limits(self, now: float) -> None:
        rate, burst = self.limits.max_qps, self.limits.burst
        if rate is None:
            self._bucket = None
            return
        part = rate if self.limits.qps_part is None else self.limits.qps_part
        part = 0.0 if self.limits.awaits_part else part
        # Requests come one by one, at any time: without a burst of its own the limit holds over a second.
        burst = (rate if burst is None else burst) * part / rate
        if self._bucket is None:
            self._bucket = TokenBucket(part, burst, now=now)
        else:
            self._bucket.change(part, now, burst)

    async def _send(self, payload: bytes, wanted: tuple[str, ...], details: DeliveryDetails) -> EngineAnswer:
        for _ in range(2):
            if not self._engines.ready:
                raise UnavailableError(f"no engine of stream {self._stream.name} is ready")
            ticket = next(self._numbers)
            answer: asyncio.Future[EngineAnswer] = asyncio.get_running_loop().create_future()
            self._answers[ticket] = answer
            try:
                self._engines.submit_live(MessageWork(ticket, -1, payload, 0, -ticket, details, wanted))
                return await answer
            except _EngineLostError:
                continue  # Try once more, on another engine.
            finally:
                del self._answers[ticket]
                self.done += 1
        raise UnavailableError("its engines died while running it")

    def answered(self, answer: EngineAnswer) -> None:
        waiting = self._answers.get(answer.ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def lost(self, tickets: Iterable[int], why: str) -> None:
        for ticket in tickets:
            waiting = self._answers.get(ticket)
            if waiting is not None and not waiting.done():
                waiting.set_exception(_EngineLostError(why))


class _EngineLostError(Exception):
    """The engine of a request died."""


def _result(answer: EngineAnswer) -> LiveResult:
    if answer.status == "expired":
        raise LateError("its deadline had passed before it was started")
    if answer.status == "undecodable":
        raise InvalidError(f"the payload cannot be read: {answer.failures[0].error}")
    failures = {failure.plan or "result": f"{failure.kind}: {failure.error}" for failure in answer.failures}
    return LiveResult(answer.result or b"{}", failures)
