"""gRPC by a real client: jobs, runs and changes, tokens and scopes, and errors as statuses."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.support.grpcclient import Rpc, rpc_client
from tests.support.operate import create_token
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.waiting import PATIENT, eventually
from tests.support.web import LOGIN_NEEDED, WebServer, web_server
from tests.support.web_app import make_app
from tidemill import App
from tidemill.core.errors import ConfigError
from tidemill.server.fair_pool import FairDatabase
from tidemill.server.rpc import serve
from tidemill.server.rpc.methods import DESCRIPTORS, METHODS
from tidemill.server.rpc.proto import PROTO, write_proto
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database, DatabaseSettings

ROLES = (None, "viewer", "operator", "editor", "admin")


@pytest.fixture
def address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
async def web(database_url: str, address: str) -> AsyncIterator[WebServer]:
    async with web_server(database_url, f"--grpc={address}") as running:
        yield running


@pytest.fixture
async def rpc(web: WebServer, address: str) -> AsyncIterator[Rpc]:
    async with rpc_client(address) as client:
        yield client


@pytest.fixture
async def shop(database_url: str) -> AsyncIterator[App]:
    app = make_app(database_url=database_url, **PATIENT)
    yield app
    await app.close()


async def test_jobs_are_enqueued_looked_at_listed_cancelled_and_retried(rpc: Rpc, shop: App) -> None:
    made = await rpc("Jobs", "EnqueueJob", task="send", args='{"order": 7}', tags=["vip"], unique_key="k7")
    again = await rpc("Jobs", "EnqueueJob", task="send", args='{"order": 7}', unique_key="k7")
    assert (made.created, again.created, again.id) == (True, False, made.id)
    waiting = await rpc("Jobs", "GetJob", id=made.id)
    assert (waiting.state, waiting.queue, list(waiting.tags)) == ("ready", "mail", ["vip"])
    assert json.loads(waiting.args) == {"order": 7}
    assert "No worker serves queue mail" in " ".join(waiting.why)
    assert not waiting.HasField("result")
    other = await rpc("Jobs", "EnqueueJob", task="send", args='{"order": 8}', delay="1h")
    gone = await rpc("Jobs", "CancelJobs", ids=[other.id])
    assert (gone.done, list(gone.ids)) == (1, [other.id])
    async with shop.running():
        ended = await eventually(lambda: _job_in(rpc, made.id, "succeeded"))
        assert json.loads(ended.result) == {"sent": 7}
        assert ended.finished_at.ToSeconds() >= ended.created_at.ToSeconds() > 0
        retried = await rpc("Jobs", "RetryJobs", ids=[other.id])
        assert retried.asked == 1
        await eventually(lambda: _job_in(rpc, retried.ids[0], "succeeded"))
    page = await rpc("Jobs", "ListJobs", state=["succeeded"], limit=1)
    rest = await rpc("Jobs", "ListJobs", state=["succeeded"], cursor=page.next)
    assert [job.id for job in (*page.items, *rest.items)] == [retried.ids[0], made.id]
    assert not rest.HasField("next")


async def test_runs_are_started_sent_events_answered_cancelled_and_followed(rpc: Rpc, shop: App) -> None:
    watching = rpc.many("Live", "WatchChanges", topics=["runs"], timeout=150)
    assert (await watching.read()).kind == "hello"
    async with shop.running():
        flow = await rpc("Runs", "StartRun", workflow="Asking", args='{"who": "ann"}', unique_key="k")
        assert not (await rpc("Runs", "StartRun", workflow="Asking", args="{}", unique_key="k")).created
        heard = await _read_until(watching, lambda change: flow.id in change.runs)
        await eventually(lambda: _asks(rpc, flow.id))
        await rpc("Runs", "SendEvent", id=flow.id, type="Word", fields='{"word": "tide"}')
        ended = await eventually(lambda: _run_in(rpc, flow.id, "succeeded"))
        assert json.loads(ended.result) == {"word": "tide", "from": "ann"}
        dag = await rpc("Runs", "StartRun", workflow="order", args='{"order": 1}')
        asked = await eventually(lambda: _inputs(rpc, dag.id))
        assert (asked[0].node, asked[0].prompt) == ("approve", "Really?")
        assert "answer" in json.loads(asked[0].schema)["properties"]
        code, words = await rpc.refused("Runs", "SubmitInput", id=dag.id, node="approve", value='{"answer": "hm"}')
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT), words
        await rpc("Runs", "SubmitInput", id=dag.id, node="approve", value='{"answer": "yes"}')
        await eventually(lambda: _run_in(rpc, dag.id, "succeeded"))
        other = await rpc("Runs", "ForkRun", id=flow.id, at=ended.ticks - 1)
        assert (await rpc("Runs", "GetRun", id=other.id)).forked_from == flow.id
        again = await rpc("Runs", "RerunDag", id=dag.id, start="approve", edited='{"answer": "no"}')
        await eventually(lambda: _run_in(rpc, again.id, "succeeded"))
        code, words = await rpc.refused("Runs", "ForkRun", id=dag.id, at=1)
        assert (code, "is of a dag" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        doomed = await rpc("Runs", "StartRun", workflow="Asking")
        await rpc("Runs", "CancelRun", id=doomed.id, reason="not needed")
        await eventually(lambda: _run_in(rpc, doomed.id, "cancelled"))
    code, words = await rpc.refused("Runs", "CancelRun", id=doomed.id)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "has ended" in words
    listed = await rpc("Runs", "ListRuns", shape="dag")
    assert [run.id for run in listed.items] == [again.id, dag.id]
    # A client that comes back with the last id it has seen misses nothing.
    watching.cancel()
    later = rpc.many("Live", "WatchChanges", last_id=heard.id)
    missed = await _read_until(later, lambda change: doomed.id in change.runs)
    assert dag.id in missed.runs
    later.cancel()


async def test_a_stream_that_nobody_reads_is_ended(
    database: Database, database_url: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "READ_WITHIN", 0.5)
    fill = """
        INSERT INTO tidemill.job (queue, task, args)
        SELECT 'queue-' || n || '-' || repeat('x', 300), 'send', '{}' FROM generate_series(1, 2000) AS n
    """
    async with FairDatabase(DatabaseSettings(url=database_url), label="test server") as own:
        server_state = ServerState(
            make_app(database_url=database_url), own, ServerSettings(grpc=address, trust_local=True)
        )
        following = asyncio.create_task(server_state.hub.run())
        async with serve.serving_grpc(server_state), rpc_client(address) as lazy:
            call = lazy.many("Live", "WatchChanges", timeout=120)
            assert (await call.read()).kind == "hello"
            async with asyncio.timeout(100):
                while server_state.hub.watching:
                    await database.fetch(fill)
            with pytest.raises(grpc.aio.AioRpcError, match="nothing was read"):
                await _read_until(call, lambda _: False)
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_an_error_is_a_grpc_status_with_its_message(rpc: Rpc) -> None:
    cases = [
        (("Jobs", "EnqueueJob"), {"task": "nothing"}, grpc.StatusCode.INVALID_ARGUMENT, "nothing"),
        (("Jobs", "EnqueueJob"), {"task": "send", "args": "{"}, grpc.StatusCode.INVALID_ARGUMENT, "args: is not JSON"),
        (
            ("Jobs", "EnqueueJob"),
            {"task": "send", "args": "[1]"},
            grpc.StatusCode.INVALID_ARGUMENT,
            "args: must be an object",
        ),
        (("Jobs", "GetJob"), {"id": 4711}, grpc.StatusCode.NOT_FOUND, "no job 4711"),
        (("Jobs", "ListJobs"), {"limit": 5000}, grpc.StatusCode.INVALID_ARGUMENT, "limit"),
        (("Jobs", "ListJobs"), {"cursor": "hm"}, grpc.StatusCode.INVALID_ARGUMENT, "not a cursor"),
        (("Runs", "StartRun"), {"workflow": "nothing"}, grpc.StatusCode.INVALID_ARGUMENT, "nothing"),
        (("Live", "AskStream"), {"stream": "nothing"}, grpc.StatusCode.NOT_FOUND, "no stream"),
    ]
    for (service, method), fields, status, words in cases:
        code, told = await rpc.refused(service, method, **fields)
        assert code is status, (service, method, fields, told)
        assert words in told
    watching = rpc.many("Live", "WatchChanges", timeout=1.0)
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await _read_until(watching, lambda change: False)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_tools_find_the_services_and_their_health(web: WebServer, address: str) -> None:
    def look() -> tuple[Any, int]:
        with grpc.insecure_channel(address) as channel:
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
            health: Any = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest(service="tidemill.v1.Jobs")
            return services, health.Check(asked, timeout=150).status

    services, status = await asyncio.to_thread(look)
    assert {"tidemill.v1.Jobs", "tidemill.v1.Runs", "tidemill.v1.Streams", "tidemill.v1.Live"} <= set(services)
    assert status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["writable", "read-only"])
async def test_each_role_may_call_what_its_scope_says_and_nothing_more(
    database_url: str, database: Database, address: str, options: tuple[str, ...]
) -> None:
    tokens = {role: (await create_token(database, role, role, by="test"))[0] for role in ROLES if role}
    async with web_server(database_url, LOGIN_NEEDED, f"--grpc={address}", *options):
        for role in ROLES:
            async with rpc_client(address, tokens.get(role) if role else None) as rpc:
                for (service, method), served in METHODS.items():
                    code = await _code(rpc, service, method)
                    if role is None:
                        assert code is grpc.StatusCode.UNAUTHENTICATED, (role, service, method)
                    elif ROLES.index(role) < ROLES.index(served.role) or (options and served.role != "viewer"):
                        assert code is grpc.StatusCode.PERMISSION_DENIED, (role, service, method)
                    else:
                        refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
                        assert code not in (*refused, grpc.StatusCode.INTERNAL), (role, service, method)
        async with rpc_client(address, "tm_wrong") as rpc:
            assert (await rpc.refused("Jobs", "GetJob", id=1))[0] is grpc.StatusCode.UNAUTHENTICATED


async def test_an_address_that_is_taken_ends_the_server_in_words(web: WebServer, database_url: str) -> None:
    second = WebServer(database_url, f"--grpc=127.0.0.1:{web.port}")
    try:
        assert await second.ends() != 0
        assert "gRPC cannot be served" in second.said
    finally:
        second.close()


def test_grpc_that_others_can_reach_needs_tls_and_tokens_too() -> None:
    with pytest.raises(ConfigError, match="can be reached by other machines"):
        ServerSettings(grpc="0.0.0.0:7434").validate()
    assert ServerSettings(grpc="0.0.0.0:7434", plain_http=True).validate().asks_login
    assert ServerSettings(grpc="127.0.0.1:7434").validate().asks_login
    assert not ServerSettings(grpc="127.0.0.1:7434", trust_local=True).validate().asks_login
    with pytest.raises(ConfigError, match="--grpc 'here' is not an address"):
        ServerSettings(grpc="here").validate()


def test_the_proto_files_describe_what_is_served(tmp_path: Path) -> None:
    files = ["tidemill/server/rpc/operations.proto", "tidemill/server/rpc/live.proto"]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", f"--descriptor_set_out={tmp_path}/found"]
    subprocess.run([*command, *files], check=True, capture_output=True, cwd=ROOT)
    described = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "found").read_bytes()).file
    served = []
    for descriptor in DESCRIPTORS:
        ours = descriptor_pb2.FileDescriptorProto()
        descriptor.CopyToProto(ours)
        served.append(ours)
    for file in (*described, *served):
        for message in file.message_type:
            for field in (*message.field, *(each for nested in message.nested_type for each in nested.field)):
                field.ClearField("json_name")
    assert {file.name: file for file in described} == {file.name: file for file in served}


def test_the_proto_file_follows_from_the_operations() -> None:
    stored = PROTO.read_text()
    assert write_proto(stored) == stored, "run `python -m tidemill.server.rpc.proto` and commit operations.proto"


def test_a_field_keeps_its_number_and_a_new_one_gets_the_next() -> None:
    stored = PROTO.read_text()
    start = stored.index("message ListAuditRequest {")
    before = stored[:start] + stored[start:].replace("  optional string cursor = 4;\n", "", 1).replace(
        "int64 limit = 3;", "int64 limit = 12;", 1
    )
    found = write_proto(before)[start:]
    assert "int64 limit = 12;" in found
    assert "optional string cursor = 13;" in found


async def test_a_call_with_an_idempotency_key_acts_once(rpc: Rpc) -> None:
    first = await rpc("Jobs", "EnqueueJob", task="send", args='{"order": 7}', idempotency_key="k")
    again = await rpc("Jobs", "EnqueueJob", task="send", args='{"order": 7}', idempotency_key="k")
    assert again == first
    assert len((await rpc("Jobs", "ListJobs")).items) == 1
    code, words = await rpc.refused("Jobs", "EnqueueJob", task="send", args='{"order": 8}', idempotency_key="k")
    assert (code, "came with another request" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, words = await rpc.refused("Admin", "CreateToken", name="laptop", role="viewer", idempotency_key="s")
    assert (code, "holds a secret" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    code, words = await rpc.refused("Jobs", "CancelJobs", ids=[first.id], idempotency_key="x" * 201)
    assert (code, "1 to 200 printable" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_a_token_that_is_revoked_by_grpc_is_refused_at_once(
    database_url: str, database: Database, address: str
) -> None:
    tokens = {role: await create_token(database, role, role, by="test") for role in ("viewer", "admin")}
    async with (
        web_server(database_url, LOGIN_NEEDED, f"--grpc={address}"),
        rpc_client(address, tokens["viewer"][0]) as reader,
        rpc_client(address, tokens["admin"][0]) as admin,
    ):
        await reader("Jobs", "ListJobs")
        await admin("Admin", "RevokeToken", id=tokens["viewer"][1]["id"])
        assert (await reader.refused("Jobs", "ListJobs"))[0] is grpc.StatusCode.UNAUTHENTICATED


async def _code(rpc: Rpc, service: str, method: str) -> grpc.StatusCode:
    try:
        if METHODS[service, method].stream is not None:
            call = rpc.many(service, method)
            await call.read()
            call.cancel()
        else:
            await rpc(service, method)  # Without arguments, which most methods refuse once the role is enough.
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def _read_until(call: Any, wanted: Any) -> Any:
    while True:
        change = await call.read()
        if not hasattr(change, "runs"):  # gRPC's own mark for the end.
            raise AssertionError("the stream ended")
        if wanted(change):
            return change


async def _job_in(rpc: Rpc, number: int, state: str) -> Any:
    job = await rpc("Jobs", "GetJob", id=number)
    return job if job.state == state else None


async def _run_in(rpc: Rpc, number: int, state: str) -> Any:
    run = await rpc("Runs", "GetRun", id=number)
    return run if run.state == state else None


async def _inputs(rpc: Rpc, number: int) -> Any:
    return list((await rpc("Runs", "ListInputs", run=number)).items)


async def _asks(rpc: Rpc, number: int) -> bool:
    return (await rpc("Runs", "GetRun", id=number)).ticks >= 2
