"""Every operation does the same wherever it is asked for: on the database, through a server, by gRPC, as a command.

Compared are the result, the audit entries, the states of jobs, and the errors for wrong arguments. An operation without
a case in `operations/` fails here.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import msgspec
import pytest
from msgspec import Struct

from tests.invariants.operations.admin import CASES as ADMIN_CASES, KEY, KEY_FILE
from tests.invariants.operations.case import Case, World
from tests.invariants.operations.jobs import CASES as JOB_CASES
from tests.invariants.operations.monitors import CASES as MONITOR_CASES
from tests.invariants.operations.pipelines import CASES as PIPELINE_CASES, FOLDER, declare
from tests.invariants.operations.runs import CASES as RUN_CASES
from tests.invariants.operations.streams import CASES as STREAM_CASES
from tests.support.grpcclient import Rpc, request_of, rpc_client
from tests.support.ports import free_port
from tests.support.server import TestServer
from tests.support.web import WEB_APP, WebServer
from tests.support.web_app import make_app
from tidemill.cli import main
from tidemill.core.accounts import Caller
from tidemill.core.errors import ForbiddenError
from tidemill.ops.explain import ExplainObject, explain
from tidemill.ops.jobs.jobs import RetryJobs, retry_jobs
from tidemill.ops.operator.errors import error_of, kind_of
from tidemill.ops.operator.http_client import HttpClient
from tidemill.ops.operator.local import Local
from tidemill.ops.operator.operation import Operation, Operator
from tidemill.ops.operator.registry import all_operations
from tidemill.ops.operator.remote import Remote
from tidemill.server.rpc.methods import METHODS
from tidemill.server.rpc.proto import method_of, service_of
from tidemill.store.database import Database, DatabaseSettings

CALLER = Caller("local", "admin")
"""The name that a server without log-in gives to its callers."""

#: They evaluate what a caller sends, which takes more than the role `viewer`, and change nothing.
UNCHANGING = {"dry_run_workflow"}

CASES = JOB_CASES | RUN_CASES | STREAM_CASES | PIPELINE_CASES | MONITOR_CASES | ADMIN_CASES

OPERATIONS = {each.name: each for each in all_operations()}

#: Empties all tables but the ledger of migrations, and starts their ids at 1. For a few rows DELETE is quicker than
#: TRUNCATE, which makes new files for every table and index.
EMPTY = """
DO $$ DECLARE name text; BEGIN
    PERFORM set_config('session_replication_role', 'replica', true);  -- no triggers, no order of foreign keys
    FOR name IN
        SELECT format('tidemill.%I', c.relname) FROM pg_class AS c
        WHERE c.relnamespace = 'tidemill'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND c.relname NOT IN ('schema_version', 'change', 'change_log')
    LOOP EXECUTE 'DELETE FROM ' || name; END LOOP;
    PERFORM setval(c.oid, s.seqstart, false) FROM pg_class AS c JOIN pg_sequence AS s ON s.seqrelid = c.oid
    WHERE c.relnamespace = 'tidemill'::regnamespace;
END $$
"""

#: What differs from one time to the next.
CHANGING = {
    "took", "secret", "hint", "silent", "since", "until", "pid", "bytes", "age", "oldest", "oldest_waiting",
    "seconds",
}  # fmt: skip
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00| UTC)?")
LENGTH = re.compile(r"\b\d+(\.\d+)?(ms|s|m|h|d)\b(\s?\d+(ms|s|m|h|d)\b)*")
PERSON = re.compile(r"^\S+@\S+$")


class Site(NamedTuple):
    """A server with gRPC, and the database that it works on."""

    web: WebServer
    database_url: str
    grpc: str


@pytest.fixture(scope="module")
def site(server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    os.environ[FOLDER] = str(tmp_path_factory.mktemp("workflows"))
    os.environ[KEY_FILE] = str(tmp_path_factory.mktemp("keys") / "secret.key")
    Path(os.environ[KEY_FILE]).write_text(KEY)
    url, address = server.create(), f"127.0.0.1:{free_port()}"
    web = WebServer(url, f"--grpc={address}")
    asyncio.run(web.wait_ready())
    yield Site(web, url, address)
    web.close()
    server.drop(url)
    del os.environ[FOLDER], os.environ[KEY_FILE]


@pytest.fixture
async def world(site: Site) -> AsyncIterator[World]:
    files = {"workflow_folder": os.environ[FOLDER], "secret_key_file": os.environ[KEY_FILE]}
    app = make_app(database_url=site.database_url, **files)
    declare(app)
    async with Database(DatabaseSettings(url=site.database_url)) as database:
        yield World(app, database, site.web.url)
    await app.close()


@contextlib.contextmanager
def remote(site: Site) -> Iterator[Remote]:
    client = HttpClient(site.web.url)
    try:
        yield Remote(client)
    finally:
        client.close()


def local(world: World, caller: Caller = CALLER) -> Local:
    return Local(world.database, caller, world.app.declarations)


async def prepared(world: World, case: Case) -> int:
    """Make what a case begins with; returns how many audit entries there are."""
    await world.database.run(lambda connection: connection.execute(EMPTY))
    await case.prepare(world)
    return len(await world.database.fetch("SELECT FROM tidemill.audit"))


class Effect(NamedTuple):
    """What an operation left in the database."""

    audit: list[Any]
    jobs: list[Any]
    runs: list[Any]


async def effect(world: World, before: int) -> Effect:
    entries = await world.database.fetch(
        "SELECT who, action, target, before, after FROM tidemill.audit ORDER BY id OFFSET $1", before
    )
    jobs = await world.database.fetch(
        "SELECT id, state, queue, task FROM tidemill.job UNION ALL SELECT id, state, queue, task "
        "FROM tidemill.job_history ORDER BY id"
    )
    runs = await world.database.fetch(
        "SELECT id, workflow, state, seq, CASE WHEN key < '~' THEN key END, awake, note, "
        "(SELECT count(*) FROM tidemill.inbox WHERE run_id = run.id) FROM tidemill.run ORDER BY id"
    )
    audit = [
        (PERSON.sub("local", row["who"]), row["action"], row["target"], *_json(row["before"], row["after"]))
        for row in entries
    ]
    return Effect(settled(audit), [tuple(row) for row in jobs], settled([tuple(row) for row in runs]))


def _json(*stored: bytes | None) -> list[Any]:
    return [None if each is None else msgspec.json.decode(each) for each in stored]


def settled(value: Any, key: str = "") -> Any:
    """A value without what differs from one time to the next."""
    if isinstance(value, Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        # Which request something was asked for in is known to servers only.
        return {name: settled(each, name) for name, each in value.items() if name != "request" or "by" not in value}
    if isinstance(value, list | tuple):
        return [settled(each, key) for each in value]
    if isinstance(value, str) and PERSON.match(value):
        return "local"
    if isinstance(value, str):
        text = LENGTH.sub("SOME TIME", MOMENT.sub("MOMENT", value))
        text = re.sub(r", in request \S+ \S+(?=\.)", "", text)
        text = re.sub(r"(by )?\S+@\S+?(?=[,. ]|$)|by local on \S+ \(pid \d+\)", "by local", text)
        return text if key not in CHANGING else "CHANGING"
    if key in CHANGING and value is not None:
        return "CHANGING"
    return value


class Refusal(NamedTuple):
    """An error: its class, its message and its gRPC code."""

    kind: type
    words: str
    code: str | None


async def refusal(at: Operator, operation: Operation[Any, Any], args: Struct) -> Refusal:
    """The error with which an operation is refused."""
    try:
        answer = await at.do(operation, args)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is compared
        known = kind_of(error)
        return Refusal(type(error), str(error), None if known is None else known.code)
    raise AssertionError(f"{operation.name} accepts {args}: {answer}")


def test_every_operation_has_a_case() -> None:
    assert set(CASES) == set(OPERATIONS)


def test_every_argument_has_one_line_of_help() -> None:
    for operation in OPERATIONS.values():
        for field in msgspec.structs.fields(operation.args):
            notes = getattr(field.type, "__metadata__", ())
            text = next((each.description for each in notes if getattr(each, "description", None)), "")
            assert text, f"{operation.args.__name__}.{field.name} has no help"
            assert "\n" not in text


@pytest.mark.parametrize("name", CASES)
async def test_an_operation_does_the_same_on_the_database_through_a_server_and_by_grpc(
    name: str, world: World, site: Site
) -> None:
    operation, case = OPERATIONS[name], CASES[name]
    assert METHODS[service_of(operation), method_of(operation)].role == operation.role
    before = await prepared(world, case)
    result = settled(await local(world).do(operation, case.args))
    left = await effect(world, before)
    if operation.acts and name not in UNCHANGING:
        assert left.audit, "what changes something leaves an audit entry"
    else:
        assert left.audit == []
    before = await prepared(world, case)
    with remote(site) as server:
        assert settled(await server.do(operation, case.args)) == result
    assert await effect(world, before) == left
    before = await prepared(world, case)
    async with rpc_client(site.grpc) as rpc:
        assert without_empty(settled(await rpc.do(operation, case.args))) == without_empty(result)
    assert await effect(world, before) == left


@pytest.mark.parametrize(
    ("id", "case", "kind", "state", "followed"),
    [
        ("2", "cancel_jobs", "job", "cancelled", {"4"}),
        ("r1", "get_ticks", "run", "running", set()),
        ("r2/approve", "get_dag_tree", "node", "waiting", set()),
        ("a1", "get_alert", "alert", "open", {"a1"}),
        ("d1", "get_dead_letter", "dead letter", "failed", set()),
        ("ovens/hot/a", "get_alert", "trigger", "open", {"a1"}),
        ("ovens/hot/b", "get_alert", "trigger", "quiet", {"a2"}),
        ("shout/a", "get_state", "state", "fresh", None),
        ("out/a.txt", "get_state", "state", "fresh", None),
    ],
)
async def test_anything_is_explained_by_its_id_with_what_followed_from_it(
    id: str, case: str, kind: str, state: str, followed: set[str] | None, world: World
) -> None:
    await prepared(world, CASES[case])
    if kind == "job":
        await local(world).do(retry_jobs, RetryJobs(ids=[2]))
    found = await local(world).do(explain, ExplainObject(id=id, forward=True))
    assert (found.kind, found.state) == (kind, state)
    assert found.why
    if followed is not None:
        assert {each.id for each in found.followed} == followed
    backward = await local(world).do(explain, ExplainObject(id=id))
    assert settled(backward) == settled(msgspec.structs.replace(found, followed=[]))


@pytest.mark.parametrize("through", ["database", "server"])
async def test_a_run_of_a_dag_is_drawn_through_a_server_as_well(through: str, world: World, site: Site) -> None:
    await prepared(world, CASES["get_dag_tree"])
    status, drawn = await asyncio.to_thread(type_command, "dag draw --run r2", through, site)
    assert (status, drawn.splitlines()[0]) == (0, "flowchart TD"), drawn
    assert any(line.startswith("    class ") and line.endswith(" waiting") for line in drawn.splitlines()), drawn


async def test_a_bulk_cancel_of_runs_leaves_one_audit_entry(world: World) -> None:
    before = await prepared(world, CASES["cancel_runs"])
    done = await local(world).do(OPERATIONS["cancel_runs"], CASES["cancel_runs"].args)
    ((_, action, target, states, after),) = (await effect(world, before)).audit
    assert (done.count, action, target) == (2, "run.cancel", "r2, r1")
    assert states == {"1": "running", "2": "running"}
    assert (after["asked"], after["reason"]) == ([2, 1], "enough")


@pytest.mark.parametrize("name", CASES)
async def test_what_is_refused_is_refused_in_the_same_words_and_changes_nothing(
    name: str, world: World, site: Site
) -> None:
    operation, case = OPERATIONS[name], CASES[name]
    before = await prepared(world, case)
    left = await effect(world, before)
    async with rpc_client(site.grpc) as rpc:
        with remote(site) as server:
            for wrong in case.wrong:
                refused = await refusal(local(world), operation, wrong)
                assert await refusal(server, operation, wrong) == refused, wrong
                assert refused.code is not None, f"{refused.kind.__name__} is not in the table of errors"
                await assert_refused_by_grpc(rpc, operation, wrong, refused)
    if operation.body is None:
        await assert_undeclared_field_is_refused(site, operation, case)
    if operation.role != "viewer":
        refused = await refusal(local(world, Caller("eve", "viewer")), operation, case.args)
        assert refused.kind is ForbiddenError
        assert f"role {operation.role}" in refused.words
    assert await effect(world, before) == left


async def assert_refused_by_grpc(rpc: Rpc, operation: Operation[Any, Any], wrong: Struct, refused: Refusal) -> None:
    try:
        request_of(operation, wrong)
    except (TypeError, ValueError):
        return  # The message cannot hold it.
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await rpc.do(operation, wrong)
    code, words = error.value.code(), error.value.details() or ""
    assert (code, words) == (grpc.StatusCode[refused.code or "OK"], refused.words)
    kind = dict(error.value.trailing_metadata() or ())["problem-type"]
    assert type(error_of(str(kind), words)) is refused.kind


async def assert_undeclared_field_is_refused(site: Site, operation: Operation[Any, Any], case: Case) -> None:
    given = msgspec.to_builtins(case.args)
    path = operation.path.format(**{field: given.pop(field) for field in operation.path_fields})
    async with site.web.client() as client:
        if operation.takes_body:
            answer = await client.request(operation.method, path, json={**given, "nonsense": 1})
        else:
            answer = await client.request(operation.method, path, params={"nonsense": 1})
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == "nonsense"


def without_empty(value: Any) -> Any:
    """A value without empty fields: messages do not distinguish an empty list from none."""
    if isinstance(value, dict):
        return {name: without_empty(each) for name, each in value.items() if each not in (None, [], {})}
    return [without_empty(each) for each in value] if isinstance(value, list) else value


@pytest.mark.long
@pytest.mark.parametrize("through", ["database", "server"])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.command])
async def test_a_command_does_the_same(name: str, through: str, world: World, site: Site) -> None:
    operation, case = OPERATIONS[name], CASES[name]
    before = await prepared(world, case)
    result = settled(await local(world).do(operation, case.args))
    left = await effect(world, before)
    before = await prepared(world, case)
    status, said = await asyncio.to_thread(type_command, case.command or "", through, site)
    assert status == 0, said
    assert await effect(world, before) == left
    if "--json" in (case.command or ""):
        assert settled(json.loads(said)) == (result["items"] if case.items else result)


def type_command(text: str, through: str, site: Site) -> tuple[int, str]:
    """What a command prints, and its exit status."""
    # JSON has quotes of its own, and no spaces here.
    words = [word if word.startswith("{") else shlex.split(word)[0] for word in text.split()]
    if through == "server":
        words = [*(word for word in words if word not in ("APP", "--app=APP")), "--server", site.web.url]
    else:
        words = [*(word.replace("APP", str(WEB_APP)) for word in words), "--database-url", site.database_url]
    output = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(io.StringIO()) as errors,
    ):
        patch.setenv("TIDEMILL_SECRET_KEY_FILE", os.environ[KEY_FILE])  # for commands on the database
        status = main.run(words)
    return status, output.getvalue() if status == 0 else errors.getvalue()
