"""Every face that starts work takes the options of `docs/jobs.md`: Python, SQL, HTTP, gRPC, commands, tools."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from tests.support.start_table import OPTIONS
from tidemill import App, ModelSpec
from tidemill.cli.jobs.batches import enqueue as enqueue_batch_command
from tidemill.cli.jobs.enqueue import enqueue as enqueue_command
from tidemill.cli.runs.start import start as start_command
from tidemill.core.errors import ConfigError
from tidemill.dags import Dag, node
from tidemill.engine.jobs.enqueue_options import EnqueueOptions, ManyOptions
from tidemill.engine.runs.start_options import NOT_FOR_RUNS, StartOptions
from tidemill.ops.jobs.batches import EnqueueBatch, enqueue_batch
from tidemill.ops.jobs.jobs import EnqueueJob, enqueue_job
from tidemill.ops.runs.runs import RunStarted, StartRun, start_run
from tidemill.ops.runs.start import StartWork, start_work
from tidemill.server.mcp.tools import offered_tools
from tidemill.server.rpc import operations_pb2
from tidemill.store.database import Database
from tidemill.store.jobs.declared import declare

ARGUMENTS = "SELECT proargnames[:pronargs] FROM pg_proc WHERE oid = to_regproc('tidemill.' || $1)"


def given(call: str) -> set[str]:
    """The options of a call in the guide; a connection is only given where there is one."""
    return {option for option, (_, takers, _) in OPTIONS.items() if call in takers} - {"conn"}


def of_command(command: Callable[..., Any]) -> set[str]:
    names = set(inspect.signature(command).parameters)
    return names | {"tags"} if "tag" in names else names


def of_message(name: str) -> set[str]:
    return set(getattr(operations_pb2, name).DESCRIPTOR.fields_by_name)


def of_tool(name: str) -> set[str]:
    return set(offered_tools()[name].schema["properties"])


FACES = {
    "app.enqueue": ("enqueue", set(EnqueueOptions.__annotations__)),
    "app.enqueue_many": ("enqueue_many", set(ManyOptions.__annotations__)),
    "app.start": ("start_flow", set(StartOptions.__annotations__)),
    "POST /jobs": ("enqueue", set(EnqueueJob.__struct_fields__)),
    "POST /batches": ("batch", set(EnqueueBatch.__struct_fields__)),
    "POST /runs": ("start_flow", set(StartRun.__struct_fields__)),
    "POST /start": ("enqueue", set(StartWork.__struct_fields__)),
    "tidemill enqueue": ("enqueue", of_command(enqueue_command)),
    "tidemill batch enqueue": ("batch", of_command(enqueue_batch_command)),
    "tidemill start": ("enqueue", of_command(start_command)),
    "rpc EnqueueJob": ("enqueue", of_message("EnqueueJobRequest")),
    "rpc EnqueueBatch": ("batch", of_message("EnqueueBatchRequest")),
    "rpc StartRun": ("start_flow", of_message("StartRunRequest")),
    "rpc StartWork": ("enqueue", of_message("StartWorkRequest")),
    "tool enqueue_job": ("enqueue", of_tool("enqueue_job")),
    "tool enqueue_batch": ("batch", of_tool("enqueue_batch")),
    "tool start_run": ("start_flow", of_tool("start_run")),
}


@pytest.mark.parametrize("face", FACES)
def test_a_face_takes_all_options_of_its_call(face: str) -> None:
    call, taken = FACES[face]
    assert not given(call) - taken
    assert not (set(OPTIONS) - given(call)) & taken, "an option that its call does not have"


@pytest.mark.parametrize(
    ("function", "call"), [("enqueue", "enqueue"), ("enqueue_batch", "batch"), ("start", "start_flow")]
)
async def test_a_sql_function_takes_all_options_of_its_call(database: Database, function: str, call: str) -> None:
    (row,) = await database.fetch(ARGUMENTS, function)
    assert not given(call) - set(row[0])
    assert not (set(OPTIONS) - given(call)) & set(row[0]), "an option that its call does not have"


@pytest.fixture
async def shop(database_url: str, database: Database) -> AsyncIterator[App]:
    app = App("test", database_url=database_url, models=[ModelSpec("tiny", load=object)], webhook_secret="s")

    @app.task(queue="mail", rate="1000/s")
    async def send(n: int = 0) -> None: ...

    app.dag(Dag("order", [node("send", "send")]), rate=1000)
    async with app:
        await declare(database, app.declarations.templates())
        yield app


def http(option: str) -> dict[str, Any]:
    return OPTIONS[option][0]


@pytest.mark.parametrize("option", sorted(given("enqueue")))
async def test_an_option_of_a_job_is_stored_whoever_asks(shop: App, database: Database, option: str) -> None:
    options, condition = http(option), OPTIONS[option][2]["job"]
    await shop.do(enqueue_job, EnqueueJob(task="send", **options))
    if "unique_key" not in options:
        await shop.do(start_work, StartWork(name="send", **options))
        await enqueue_by_sql(database, options)
        if option in given("batch"):
            await shop.do(enqueue_batch, EnqueueBatch(task="send", each=[{}], **options))
            await enqueue_by_sql(database, options, batch=True)
    rows = await database.fetch(f"SELECT id FROM tidemill.job WHERE ({condition}) IS NOT TRUE")
    assert rows == []
    assert await database.fetch("SELECT FROM tidemill.job")


@pytest.mark.parametrize("option", ["unique_key", "unique_for", "debounce"])
async def test_an_option_of_unique_keys_is_the_same_from_sql(shop: App, database: Database, option: str) -> None:
    options, condition = http(option), OPTIONS[option][2]["job"]
    await enqueue_by_sql(database, options)
    assert (await database.fetch(f"SELECT count(*) FROM tidemill.job WHERE {condition}"))[0][0] == 1
    await enqueue_by_sql(database, options)
    await shop.do(enqueue_job, EnqueueJob(task="send", **options))
    assert (await database.fetch("SELECT count(*) FROM tidemill.job"))[0][0] == 1


async def enqueue_by_sql(database: Database, options: dict[str, Any], *, batch: bool = False) -> None:
    values = []
    for name, value in options.items():
        kind = {"delay": "interval", "debounce": "interval", "unique_for": "interval", "deadline": "interval"}.get(name)
        if isinstance(value, list):
            value, kind = "{" + ",".join(value) + "}", "text[]"
        shown = str(value).replace("1h", "1 hour").replace("2h", "2 hours") if kind == "interval" else str(value)
        values.append(f"{name} => '{shown}'" + (f"::{kind}" if kind else ""))
    function = "enqueue_batch('send', ARRAY['{}']::jsonb[], " if batch else "enqueue('send', "
    await database.fetch(f"SELECT tidemill.{function}{', '.join(values)})")


@pytest.mark.parametrize("option", sorted(NOT_FOR_RUNS))
async def test_an_option_that_runs_do_not_have_is_refused_with_what_there_is_instead(shop: App, option: str) -> None:
    with pytest.raises(ConfigError, match="which jobs have") as refused:
        await shop.do(start_work, StartWork(name="order", **http(option)))
    assert NOT_FOR_RUNS[min(NOT_FOR_RUNS.keys() & http(option).keys())] in str(refused.value)
    await shop.do(start_run, StartRun(workflow="order"))


@pytest.mark.parametrize(("key", "said"), [("x" * 1801, "at most 1800 bytes"), ("~child", "for Tidemill's own keys")])
async def test_a_unique_key_of_a_run_is_refused_whoever_asks(
    shop: App, database: Database, key: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        await shop.start("order", unique_key=key)
    with pytest.raises(ConfigError, match=said):
        await shop.do(start_run, StartRun(workflow="order", unique_key=key))
    with pytest.raises(asyncpg.InvalidParameterValueError, match=said):
        await database.fetch("SELECT tidemill.start('order', unique_key => $1)", key)


@pytest.mark.parametrize("key", ["x" * 1800, "größe\t7", ""])
async def test_any_other_unique_key_of_a_run_is_taken_whoever_asks(shop: App, database: Database, key: str) -> None:
    run = await shop.start("order", unique_key=key)
    assert await shop.do(start_run, StartRun(workflow="order", unique_key=key)) == RunStarted(run.id, created=False)
    (row,) = await database.fetch("SELECT tidemill.start('order', unique_key => $1)", key)
    assert row[0] == run.id
