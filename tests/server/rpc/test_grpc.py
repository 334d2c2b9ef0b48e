"""Jobs and runs over gRPC, by a real client: the same verbs, tokens, roles and errors as over HTTP."""

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
from tidemill.server.rpc.methods import VERBS
from tidemill.server.rpc.tidemill_pb2 import DESCRIPTOR
from tidemill.server.server_state import ServerState
from tidemill.server.settings import ServerSettings
from tidemill.store.database import Database, DatabaseSettings

ROLES = (None, "viewer", "operator", "editor", "admin")

#: Requests that get as far as the role allows; what they name does not exist.
REQUESTS: dict[tuple[str, str], dict[str, Any]] = {
    ("Jobs", "Enqueue"): {"task": "nothing"},
    ("Jobs", "Get"): {"id": 987654},
    ("Jobs", "Cancel"): {"ids": [987654]},
    ("Jobs", "Retry"): {"ids": [987654]},
    ("Runs", "Start"): {"workflow": "nothing"},
    ("Runs", "Get"): {"id": 987654},
    ("Runs", "Cancel"): {"id": 987654},
    ("Runs", "SendEvent"): {"id": 987654, "type": "Word"},
    ("Runs", "Fork"): {"id": 987654, "at": 1},
    ("Runs", "Rerun"): {"id": 987654},
    ("Runs", "SubmitInput"): {"id": 987654, "node": "n", "value": "1"},
    ("Streams", "Ask"): {"stream": "nothing"},
}


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
    made = await rpc("Jobs", "Enqueue", task="send", args='{"order": 7}', tags=["vip"], unique_key="k7")
    again = await rpc("Jobs", "Enqueue", task="send", args='{"order": 7}', unique_key="k7")
    assert (made.created, again.created, again.id) == (True, False, made.id)
    waiting = await rpc("Jobs", "Get", id=made.id)
    assert (waiting.state, waiting.queue, list(waiting.tags)) == ("ready", "mail", ["vip"])
    assert json.loads(waiting.args) == {"order": 7}
    assert "No worker serves queue mail" in " ".join(waiting.why)
    assert not waiting.HasField("result")
    other = await rpc("Jobs", "Enqueue", task="send", args='{"order": 8}', delay="1h")
    gone = await rpc("Jobs", "Cancel", ids=[other.id])
    assert (gone.done, list(gone.ids)) == (1, [other.id])
    async with shop.running():
        ended = await eventually(lambda: _job_in(rpc, made.id, "succeeded"))
        assert json.loads(ended.result) == {"sent": 7}
        assert ended.finished_at.ToSeconds() >= ended.created_at.ToSeconds() > 0
        retried = await rpc("Jobs", "Retry", ids=[other.id])
        assert retried.asked == 1
        await eventually(lambda: _job_in(rpc, retried.ids[0], "succeeded"))
    page = await rpc("Jobs", "List", state=["succeeded"], limit=1)
    rest = await rpc("Jobs", "List", state=["succeeded"], cursor=page.next)
    assert [job.id for job in (*page.items, *rest.items)] == [retried.ids[0], made.id]
    assert not rest.HasField("next")


async def test_runs_are_started_sent_events_answered_cancelled_and_followed(rpc: Rpc, shop: App) -> None:
    watching = rpc.many("Changes", "Watch", topics=["runs"], timeout=60)
    assert (await watching.read()).kind == "hello"
    async with shop.running():
        flow = await rpc("Runs", "Start", workflow="Asking", args='{"who": "ann"}', key="k")
        assert not (await rpc("Runs", "Start", workflow="Asking", args="{}", key="k")).created
        heard = await _read_until(watching, lambda change: flow.id in change.runs)
        await eventually(lambda: _asks(rpc, flow.id))
        await rpc("Runs", "SendEvent", id=flow.id, type="Word", fields='{"word": "tide"}')
        ended = await eventually(lambda: _run_in(rpc, flow.id, "succeeded"))
        assert json.loads(ended.result) == {"word": "tide", "from": "ann"}
        dag = await rpc("Runs", "Start", workflow="order", args='{"order": 1}')
        asked = await eventually(lambda: _inputs(rpc, dag.id))
        assert (asked[0].node, asked[0].prompt) == ("approve", "Really?")
        assert "answer" in json.loads(asked[0].schema)["properties"]
        code, words = await rpc.refused("Runs", "SubmitInput", id=dag.id, node="approve", value='{"answer": "hm"}')
        assert code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT), words
        await rpc("Runs", "SubmitInput", id=dag.id, node="approve", value='{"answer": "yes"}')
        await eventually(lambda: _run_in(rpc, dag.id, "succeeded"))
        other = await rpc("Runs", "Fork", id=flow.id, at=ended.ticks - 1)
        assert (await rpc("Runs", "Get", id=other.id)).forked_from == flow.id
        again = await rpc("Runs", "Rerun", id=dag.id, start="approve", edited='{"answer": "no"}')
        await eventually(lambda: _run_in(rpc, again.id, "succeeded"))
        code, words = await rpc.refused("Runs", "Fork", id=dag.id, at=1)
        assert (code, "is of a dag" in words) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        doomed = await rpc("Runs", "Start", workflow="Asking")
        await rpc("Runs", "Cancel", id=doomed.id, reason="not needed")
        await eventually(lambda: _run_in(rpc, doomed.id, "cancelled"))
    code, words = await rpc.refused("Runs", "Cancel", id=doomed.id)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "has ended" in words
    listed = await rpc("Runs", "List", shape="dag")
    assert [run.id for run in listed.items] == [again.id, dag.id]
    # Whoever comes back with the last id that they have seen misses nothing.
    watching.cancel()
    later = rpc.many("Changes", "Watch", last_id=heard.id)
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
            call = lazy.many("Changes", "Watch", timeout=120)
            assert (await call.read()).kind == "hello"
            async with asyncio.timeout(100):
                while server_state.hub.watching:
                    await database.fetch(fill)
            with pytest.raises(grpc.aio.AioRpcError, match="nothing was read"):
                await _read_until(call, lambda _: False)
            assert await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_what_is_wrong_is_told_in_the_words_of_grpc(rpc: Rpc) -> None:
    cases = [
        (("Jobs", "Enqueue"), {"task": "nothing"}, grpc.StatusCode.INVALID_ARGUMENT, "nothing"),
        (("Jobs", "Enqueue"), {"task": "send", "args": "{"}, grpc.StatusCode.INVALID_ARGUMENT, "args is not JSON"),
        (("Jobs", "Enqueue"), {"task": "send", "args": "[1]"}, grpc.StatusCode.INVALID_ARGUMENT, "JSON object"),
        (("Jobs", "Get"), {"id": 4711}, grpc.StatusCode.NOT_FOUND, "no job 4711"),
        (("Jobs", "List"), {"limit": 5000}, grpc.StatusCode.INVALID_ARGUMENT, "limit"),
        (("Jobs", "List"), {"cursor": "hm"}, grpc.StatusCode.INVALID_ARGUMENT, "not a cursor"),
        (("Runs", "Start"), {"workflow": "nothing"}, grpc.StatusCode.INVALID_ARGUMENT, "nothing"),
        (("Streams", "Ask"), {"stream": "nothing"}, grpc.StatusCode.NOT_FOUND, "no stream"),
    ]
    for (service, method), fields, status, words in cases:
        code, told = await rpc.refused(service, method, **fields)
        assert code is status, (service, method, fields, told)
        assert words in told
    watching = rpc.many("Changes", "Watch", timeout=1.0)
    with pytest.raises(grpc.aio.AioRpcError) as late:
        await _read_until(watching, lambda change: False)
    assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


async def test_tools_find_the_services_and_their_health(web: WebServer, address: str) -> None:
    def look() -> tuple[Any, int]:
        with grpc.insecure_channel(address) as channel:
            services = ProtoReflectionDescriptorDatabase(channel).get_services()
            health: Any = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest(service="tidemill.v1.Jobs")
            return services, health.Check(asked, timeout=60).status

    services, status = await asyncio.to_thread(look)
    assert {"tidemill.v1.Jobs", "tidemill.v1.Runs", "tidemill.v1.Streams", "tidemill.v1.Changes"} <= set(services)
    assert status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("options", [(), ("--read-only",)], ids=["writable", "read-only"])
async def test_each_role_may_call_what_its_scope_says_and_nothing_more(
    database_url: str, database: Database, address: str, options: tuple[str, ...]
) -> None:
    tokens = {role: (await create_token(database, role, role, by="test"))[0] for role in ROLES if role}
    async with web_server(database_url, LOGIN_NEEDED, f"--grpc={address}", *options):
        for role in ROLES:
            async with rpc_client(address, tokens.get(role) if role else None) as rpc:
                for (service, method), verb in VERBS.items():
                    code = await _code(rpc, service, method)
                    if role is None:
                        assert code is grpc.StatusCode.UNAUTHENTICATED, (role, service, method)
                    elif ROLES.index(role) < ROLES.index(verb.role) or (options and verb.role != "viewer"):
                        assert code is grpc.StatusCode.PERMISSION_DENIED, (role, service, method)
                    else:
                        refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
                        assert code not in (*refused, grpc.StatusCode.INTERNAL), (role, service, method)
        async with rpc_client(address, "tm_wrong") as rpc:
            assert (await rpc.refused("Jobs", "Get", id=1))[0] is grpc.StatusCode.UNAUTHENTICATED


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


def test_the_proto_file_describes_what_is_served(tmp_path: Path) -> None:
    folder = ROOT / "tidemill" / "server" / "rpc"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"--descriptor_set_out={tmp_path}/found"]
    subprocess.run([*command, "tidemill.proto"], check=True, capture_output=True)
    found = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "found").read_bytes()).file[0]
    ours = descriptor_pb2.FileDescriptorProto()
    DESCRIPTOR.CopyToProto(ours)
    for file in (found, ours):
        file.ClearField("name")
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
    assert found == ours


async def _code(rpc: Rpc, service: str, method: str) -> grpc.StatusCode:
    try:
        if VERBS[service, method].follow is not None:
            call = rpc.many(service, method)
            await call.read()
            call.cancel()
        else:
            await rpc(service, method, **REQUESTS.get((service, method), {}))
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
    job = await rpc("Jobs", "Get", id=number)
    return job if job.state == state else None


async def _run_in(rpc: Rpc, number: int, state: str) -> Any:
    run = await rpc("Runs", "Get", id=number)
    return run if run.state == state else None


async def _inputs(rpc: Rpc, number: int) -> Any:
    return list((await rpc("Runs", "ListInputs", run=number)).items)


async def _asks(rpc: Rpc, number: int) -> bool:
    return (await rpc("Runs", "Get", id=number)).ticks >= 2
