"""The live lane over the wire: gRPC with reflection and health, HTTP, deadlines, load shed, ahead of any backlog."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support import eventually
from tests.support.operate import create_token
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.streams import publish, running_stream
from tests.support.waiting import turns
from tidemill.core.errors import ConfigError
from tidemill.server.stream_endpoint import serve
from tidemill.server.stream_endpoint.live_pb2 import DESCRIPTOR, RunRequest, RunResponse
from tidemill.sources import LogSource
from tidemill.store.database import Database
from tidemill.streams import Plan, Stream, task
from tidemill.streams.runner.dispatcher import Dispatcher

SERVICE = "tidemill.streams.v1.Live"


class Answering(Plan, eligibility="answer"):
    gate: asyncio.Event
    begun: list[Any]
    token: str

    @task(max_concurrency=4)
    async def answer(self, ctx: Any) -> dict[str, Any]:
        Answering.begun.append(ctx.value)
        if ctx.value == "wait":
            await Answering.gate.wait()
        if ctx.value == "fail":
            raise ValueError("bad news")
        return {"value": ctx.value, "live": ctx.message.live}


@pytest.fixture(autouse=True)
async def _fresh(database: Database) -> None:
    Answering.gate, Answering.begun = asyncio.Event(), []
    Answering.token = (await create_token(database, "caller", "operator", by="test"))[0]


@pytest.fixture
async def live(database_url: str) -> AsyncIterator[Dispatcher]:
    stream = Stream(
        "s",
        plans=[Answering],
        sources=[LogSource("posts", eligibilities={"answer"})],
        engines=0,
        live=3,
        grpc=f"127.0.0.1:{free_port()}",
        http=f"127.0.0.1:{free_port()}",
    )
    async with running_stream(stream, database_url, serve=serve.serving_stream) as dispatcher:
        try:
            yield dispatcher
        finally:
            Answering.gate.set()


async def ask(
    live: Dispatcher, value: Any, *, timeout: float = 60.0, eligibility: str = "answer", token: str | None = "own"
) -> Any:
    async with grpc.aio.insecure_channel(str(live.stream.grpc)) as channel:
        run = channel.unary_unary(
            f"/{SERVICE}/Run",
            request_serializer=RunRequest.SerializeToString,
            response_deserializer=RunResponse.FromString,
        )
        payload = value if isinstance(value, bytes) else json.dumps(value).encode()
        shown = Answering.token if token == "own" else token
        metadata = [] if shown is None else [("authorization", f"Bearer {shown}")]
        return await run(RunRequest(eligibilities=[eligibility], payload=payload), timeout=timeout, metadata=metadata)


async def post(
    live: Dispatcher, body: Any, path: str = "/v1/run", said: dict[str, str] | None = None
) -> tuple[int, Any]:
    def send() -> tuple[int, Any]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        own = {"Content-Type": "application/json", "Authorization": f"Bearer {Answering.token}"}
        headers = {name: text for name, text in {**own, **(said or {})}.items() if text}
        request = urllib.request.Request(f"http://{live.stream.http}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=150) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    return await asyncio.to_thread(send)


async def test_a_call_returns_what_the_plans_found(live: Dispatcher) -> None:
    answer = await ask(live, {"id": 7})
    assert json.loads(answer.result) == {"Answering": {"answer": {"value": {"id": 7}, "live": True}}}
    failed = await ask(live, "fail")
    assert dict(failed.failures) == {"Answering": "ValueError: bad news"}
    status, body = await post(live, {"eligibilities": ["answer"], "payload": {"id": 8}})
    assert (status, body["result"]["Answering"]["answer"]["value"]) == (200, {"id": 8})


class WithToken(grpc.StreamStreamClientInterceptor):
    """Sends the token with each stream of messages."""

    def intercept_stream_stream(self, continuation: Any, client_call_details: Any, request_iterator: Any) -> Any:
        metadata = [("authorization", f"Bearer {Answering.token}")]
        return continuation(client_call_details._replace(metadata=metadata), request_iterator)


async def test_a_request_needs_the_token_of_an_operator_also_from_this_machine(
    live: Dispatcher, database: Database, database_url: str
) -> None:
    viewer, _ = await create_token(database, "visitor", "viewer", by="test")
    asked = {"eligibilities": ["answer"], "payload": 1}
    for token, code, status in (
        (None, grpc.StatusCode.UNAUTHENTICATED, 401),
        ("tm_wrong", grpc.StatusCode.UNAUTHENTICATED, 401),
        (viewer, grpc.StatusCode.PERMISSION_DENIED, 403),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await ask(live, 1, token=token)
        assert refused.value.code() == code
        said = {"Authorization": f"Bearer {token}" if token else ""}
        assert (await post(live, asked, said=said))[0] == status
    assert Answering.begun == []
    trusting = Stream(
        "t", plans=[Answering], sources=[], engines=0, http=f"127.0.0.1:{free_port()}", live_trust_local=True
    )
    async with running_stream(trusting, database_url, serve=serve.serving_stream) as dispatcher:
        assert (await post(dispatcher, asked, said={"Authorization": ""}))[0] == 200


async def test_each_kind_of_trouble_has_its_status(live: Dispatcher) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await ask(live, 1, eligibility="spam")
    assert unknown.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "known are answer" in str(unknown.value.details())
    with pytest.raises(grpc.aio.AioRpcError) as broken:
        await ask(live, b"{broken")
    assert broken.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await ask(live, "wait", timeout=0.2)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await post(live, {"eligibilities": ["spam"], "payload": 1}))[0] == 400
    assert (await post(live, b"{"))[0] == 400
    assert (await post(live, {"eligibilities": ["answer"], "payload": "wait", "timeout": 0.1}))[0] == 504
    assert (await post(live, None))[0] == 405
    assert (await post(live, None, "/other"))[0] == 404


async def test_no_page_of_another_site_can_ask(live: Dispatcher) -> None:
    own = str(live.stream.http)
    asked = {"eligibilities": ["answer"], "payload": 1}
    for status, said in (
        (403, {"Origin": "https://evil.example"}),
        (403, {"Origin": "null"}),
        (403, {"Origin": f"http://{own}", "Sec-Fetch-Site": "cross-site"}),
        (421, {"Host": "evil.example"}),
        (421, {"Host": "["}),
        (415, {"Content-Type": "text/plain"}),
        (415, {"Content-Type": "application/x-www-form-urlencoded"}),
        (200, {"Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}),
        (200, {"Host": "localhost:1", "Content-Type": "application/json; charset=utf-8"}),
    ):
        assert (await post(live, asked, said=said))[0] == status, said
    assert Answering.begun == [1, 1]
    assert (await post(live, None, "/healthz", {"Host": "evil.example"}))[0] == 421


async def test_a_body_that_never_comes_is_not_waited_for(live: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "BODY_WITHIN", 0.2)
    host, _, port = str(live.stream.http).partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"POST /v1/run HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
    writer.write(f"authorization: Bearer {Answering.token}\r\n".encode())
    writer.write(b"content-length: 100\r\n\r\n{")
    assert (await asyncio.wait_for(reader.readline(), 150)).startswith(b"HTTP/1.1 408")
    writer.close()


async def test_addresses_of_ipv6_are_served(database_url: str) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    six = Stream("six", plans=[Answering], sources=[], engines=0, grpc=f"[::1]:{free_port()}")
    async with running_stream(six, database_url, serve=serve.serving_stream) as dispatcher:
        assert json.loads((await ask(dispatcher, 6)).result)["Answering"]["answer"]["value"] == 6


async def test_more_than_it_can_take_is_turned_away(live: Dispatcher) -> None:
    waiting = [asyncio.create_task(ask(live, "wait")) for _ in range(3)]
    await eventually(lambda: live.live_requests.open == 3)
    with pytest.raises(grpc.aio.AioRpcError) as shed:
        await ask(live, 1)
    assert shed.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    status, body = await post(live, {"eligibilities": ["answer"], "payload": 1})
    assert (status, body["error"]) == (429, "saturated")
    Answering.gate.set()
    await asyncio.gather(*waiting)
    assert live.live_requests.shed == 2


async def test_a_backlog_does_not_keep_a_call_waiting(live: Dispatcher, database: Database) -> None:
    await publish(database, "posts", ["wait"] * 500)
    await eventually(lambda: len(Answering.begun) == 4)
    asked = asyncio.create_task(ask(live, "me first"))
    await eventually(lambda: live.live_requests.open == 1)
    await turns()  # until it waits among the others
    Answering.gate.set()
    assert json.loads((await asked).result)["Answering"]["answer"]["value"] == "me first"
    assert Answering.begun.index("me first") <= 8


async def test_tools_find_the_service_and_its_health(live: Dispatcher) -> None:
    def look() -> tuple[list[str], int]:
        with grpc.insecure_channel(str(live.stream.grpc)) as channel:
            with pytest.raises(grpc.RpcError) as refused:
                ProtoReflectionDescriptorDatabase(channel).get_services()
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED  # pyright: ignore[reportAttributeAccessIssue]
            services = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(channel, WithToken())).get_services()
            asked = health_pb2.HealthCheckRequest(service=SERVICE)
            return list(services), health_pb2_grpc.HealthStub(channel).Check(asked, timeout=150).status  # pyright: ignore[reportAttributeAccessIssue]

    services, status = await asyncio.to_thread(look)
    assert SERVICE in services
    assert status == health_pb2.HealthCheckResponse.SERVING
    assert (await post(live, None, "/healthz")) == (200, {"status": "serving"})


async def test_health_says_so_from_the_first_moment_of_a_drain(live: Dispatcher) -> None:
    def status() -> int:
        with grpc.insecure_channel(str(live.stream.grpc)) as channel:
            asked = health_pb2.HealthCheckRequest(service=SERVICE)
            return health_pb2_grpc.HealthStub(channel).Check(asked, timeout=150).status  # pyright: ignore[reportAttributeAccessIssue]

    waiting = asyncio.create_task(ask(live, "wait"))
    await eventually(lambda: Answering.begun == ["wait"])
    live.life.stop()
    await eventually(lambda: live.draining)
    assert await asyncio.to_thread(status) == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await post(live, None, "/healthz"))[0] == 503
    assert not waiting.done(), "what was asked before is still answered"
    Answering.gate.set()
    await waiting


async def test_an_address_that_is_taken_is_told_in_words(live: Dispatcher, database_url: str) -> None:
    stream = Stream("t", plans=[Answering], sources=[], engines=0, http=live.stream.http)
    with pytest.raises(ConfigError, match="HTTP cannot be served"):
        async with running_stream(stream, database_url, serve=serve.serving_stream):
            raise AssertionError("it began")


def test_the_proto_file_describes_what_is_served(tmp_path: Path) -> None:
    folder = ROOT / "tidemill" / "server" / "stream_endpoint"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={tmp_path}/live"]
    subprocess.run([*command, "live.proto"], check=True, capture_output=True)
    found = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "live").read_bytes()).file[0]
    ours = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(ours)
    for file in (found, ours):
        file.ClearField("name")
        for message in file.message_type:
            for field in [*message.field, *(field for nested in message.nested_type for field in nested.field)]:
                field.ClearField("json_name")
    assert found == ours
