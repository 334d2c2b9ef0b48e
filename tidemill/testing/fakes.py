"""Fakes of what cannot be had in a test: another company's HTTP service, such as a model or a chat.

with FakeHttp({"/v1/price": {"euro": 12}}) as shop:
    tidemill.use(app, allow_hosts=[shop.host])
    ...
    assert shop.requests[0].json == {"item": 7}
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tidemill.monitors.definition.channels import Channel, Notice


class FakeReply(msgspec.Struct, frozen=True):
    """What a fake answers: a body that is sent as JSON, or bytes."""

    body: Any = None
    status: int = 200
    headers: Mapping[str, str] = {}


class FakeRequest(msgspec.Struct, frozen=True):
    """What a fake was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class FakeChannel(Channel, frozen=True, kw_only=True):
    """A fake channel of a monitor: it sends nothing, and keeps the notices in a list."""

    caught: list[Notice] = msgspec.field(default_factory=list)

    def send(self, notice: Notice) -> None:
        self.caught.append(notice)


Answer = Callable[[FakeRequest], Any]


class FakeHttp:
    """A fake HTTP service on a loopback port: it answers from a table and remembers what it was sent.

    `replies` maps paths to what is sent: a `FakeReply`, a function of the request, or a value that is sent as JSON. A
    path that is not in the table gets 404.
    """

    def __init__(self, replies: Mapping[str, Any]) -> None:
        self.replies = dict(replies)
        self.requests: list[FakeRequest] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                size = int(self.headers.get("content-length") or 0)
                request = FakeRequest(self.command, self.path, dict(self.headers), self.rfile.read(size))
                reply = fake.reply_to(request)
                body = reply.body if isinstance(reply.body, bytes) else msgspec.json.encode(reply.body)
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http://{self.host}"

    def reply_to(self, request: FakeRequest) -> FakeReply:
        """Remember a request, and find what it is answered."""
        self.requests.append(request)
        path = request.path.partition("?")[0]
        if path not in self.replies:
            return FakeReply({"error": f"the fake has no reply for {path}"}, 404)
        reply = self.replies[path]
        if callable(reply):
            reply = reply(request)
        return reply if isinstance(reply, FakeReply) else FakeReply(reply)

    def __enter__(self) -> FakeHttp:
        threading.Thread(target=self._server.serve_forever, name="fake-http", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class FakeLlm(FakeHttp):
    """A fake language model: it speaks the chat protocols of OpenAI and Anthropic, with the answers that a test sets.

    `answer` is a text, or a function of the last message. Nothing is generated.
    """

    def __init__(self, answer: str | Callable[[str], str]) -> None:
        self._answer = answer
        super().__init__(
            {"/v1/chat/completions": self._openai, "/chat/completions": self._openai, "/v1/messages": self._anthropic}
        )

    def _text(self, request: FakeRequest) -> str:
        if isinstance(self._answer, str):
            return self._answer
        return self._answer(str(request.json["messages"][-1]["content"]))

    def _openai(self, request: FakeRequest) -> Any:
        message = {"role": "assistant", "content": self._text(request)}
        return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": {"total_tokens": 0}}

    def _anthropic(self, request: FakeRequest) -> Any:
        content = [{"type": "text", "text": self._text(request)}]
        return {"role": "assistant", "content": content, "stop_reason": "end_turn", "usage": {"output_tokens": 0}}
