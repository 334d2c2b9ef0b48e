"""An HTTP address as a sink: one POST for each item, with an idempotency key.

Answers of 2xx take the item. 408, 425, 429 and 5xx refuse it for now, and `Retry-After` is obeyed; other answers refuse
it for good.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit

import msgspec

from tidemill.core.duration import Duration, parse_duration
from tidemill.core.web.public_url import check_http_url
from tidemill.engine.outbound_http import OutboundHttp, OutboundHttpError
from tidemill.sinks.base import SHOWN, ItemRefused, SendResult, Sink, SinkItem, Unreachable, refuse_headers, send_by_key

_LATER = (408, 425, 429)
_AS_IT_IS = string.punctuation.replace("%", "") + " "  # of a key; other characters are percent-encoded


class HttpSink(Sink, frozen=True, tag="http"):
    """An address that takes POST requests."""

    url: str
    headers: Mapping[str, str] = {}
    """Sent with every request, such as `Authorization`."""
    timeout: Duration = "30s"
    max_concurrency: int = 4
    """How many requests may be open, each for another key."""

    def __post_init__(self) -> None:
        check_http_url(self.url)
        msgspec.structs.force_setattr(self, "timeout", parse_duration(self.timeout, what="timeout"))
        super().__post_init__()

    @property
    def default_name(self) -> str:
        parts = urlsplit(self.url)
        return parts.path.strip("/").replace("/", "-") or (parts.hostname or "http")

    def sender(self) -> HttpSender:
        return HttpSender(self)


class HttpSender:
    def __init__(self, sink: HttpSink) -> None:
        self._sink = sink
        self._timeout = parse_duration(sink.timeout, what="timeout")
        self._idle: list[OutboundHttp] = []

    async def send(self, items: Sequence[SinkItem]) -> list[SendResult]:
        return await send_by_key(items, self._send, at_once=self._sink.max_concurrency)

    async def _send(self, item: SinkItem) -> SendResult:
        if (refused := refuse_headers(item.headers, encoding="latin-1")) is not None:
            return refused
        client = self._idle.pop() if self._idle else OutboundHttp(timeout=self._timeout, stated=(self._sink.url,))
        key = {} if item.key is None else {"Tidemill-Key": quote(item.key, safe=_AS_IT_IS)}
        headers = {
            "Content-Type": "application/json",
            **self._sink.headers,
            **item.headers,
            **key,
            "Idempotency-Key": item.id,
        }
        try:
            answer = await asyncio.to_thread(client.request, "POST", self._sink.url, item.payload, headers, redirects=0)
        except OutboundHttpError as error:
            client.close()
            return Unreachable(str(error))
        self._idle.append(client)
        if 200 <= answer.status < 300:
            return None
        error = f"it answered {answer.status}: {answer.text(SHOWN)}"
        if answer.status in _LATER or answer.status >= 500:
            return ItemRefused(error, after=_seconds(answer.headers.get("retry-after")))
        return ItemRefused(error, is_final=True)

    async def close(self) -> None:
        for client in self._idle:
            client.close()
        self._idle.clear()


def _seconds(header: str | None) -> float | None:
    try:
        return None if header is None else min(3600.0, max(0.0, float(header)))
    except ValueError:
        return None  # A date: the policy of the sink decides.
