"""The parts of a host: each is used where it should be, and does no harm where it fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from tests.support import eventually, value
from tests.support.dag_runs import nothing_left, reaches, running_dags, statuses
from tests.support.waiting import PATIENT
from tidemill import App, current_job
from tidemill.core.errors import ConfigError
from tidemill.core.expressions.refs import Refs
from tidemill.dags import Dag, input_node, node, ref
from tidemill.dags.errors import DagError, DagRunError
from tidemill.engine.application.hooks import NodeCall
from tidemill.engine.models.spec import ModelSpec
from tidemill.store.database import Database

tenant: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.fixture
def settings(database_url: str) -> dict[str, Any]:
    return {"database_url": database_url, "grace_seconds": 5, **PATIENT}


# -- invoke context -------------------------------------------------------------------------------


class Host:
    """Puts something around every node, and remembers what happened."""

    def __init__(self) -> None:
        self.calls: list[NodeCall] = []
        self.told: list[str] = []

    @contextmanager
    def plain(self, call: NodeCall) -> Iterator[Any]:
        self.calls.append(call)
        token = tenant.set(f"tenant of {call.node}")
        try:
            yield lambda result: {"result": result, "by": tenant.get()}
            self.told.append(f"{call.node} ended well")
        except BaseException as error:
            self.told.append(f"{call.node} raised {type(error).__name__}")
            raise
        finally:
            tenant.reset(token)

    @asynccontextmanager
    async def waiting(self, call: NodeCall) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        with self.plain(call) as finalise:

            async def later(result: Any) -> Any:
                await asyncio.sleep(0)
                return finalise(result)

            yield later


def declare(app: App) -> App:
    @app.task
    async def in_loop(word: str) -> str:
        return f"{word} {tenant.get()}"

    @app.task
    def in_thread(word: str) -> str:
        assert threading.current_thread() is not threading.main_thread()
        return f"{word} {tenant.get()}"

    @app.task
    async def fail() -> None:
        raise ValueError("no luck")

    @app.task
    async def endless() -> None:
        await asyncio.Event().wait()

    @app.task
    async def odd() -> Any:
        return object()

    @app.task
    async def plain_job() -> str:
        return tenant.get()

    return app


@pytest.mark.parametrize("kind", ["plain", "waiting"])
async def test_what_the_host_puts_around_nodes_is_there_and_goes_on_every_path(
    settings: dict[str, Any], database: Database, kind: str
) -> None:
    host = Host()
    app = declare(App("hosted", invoke_context=getattr(host, kind), **settings))
    dag = Dag(
        "d",
        [
            node("one", "in_loop", args={"word": "x"}),
            node("two", "in_thread", args={"word": "y"}, deps=["one"]),
            node("bad", "fail", on_failure="continue", deps=["two"]),
            node("strange", "odd", on_failure="continue", deps=["two"]),
            node("long", "endless", on_failure="continue", budget=0.3, deps=["two"]),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        with pytest.raises(DagRunError, match="ValueError: no luck"):
            await run.result(timeout=120)
        _, state = await run.load()
        assert state.nodes["one"].result == {"result": "x tenant of one", "by": "tenant of one"}
        assert state.nodes["two"].result == {"result": "y tenant of two", "by": "tenant of two"}
        cancelled = await app.start(Dag("c", [node("gone", "endless")]))
        await eventually(lambda: host.calls[-1].node == "gone")
        await cancelled.cancel()
        await eventually(lambda: "gone raised CancelledError" in host.told)
        job = await app.enqueue("plain_job")
        assert (await app.wait(job, timeout=120)).result == "nobody", "a job that is no node has nothing around it"
        await eventually(lambda: nothing_left(database))
    await app.close()
    assert host.told[:2] == ["one ended well", "two ended well"]
    assert sorted(host.told[2:-1]) == [
        "bad raised ValueError",
        "long raised CancelledError",
        "strange raised PayloadError",
    ]
    first = host.calls[0]
    assert (first.run, first.node, first.task, first.args, first.attempt) == (
        run.id,
        "one",
        "in_loop",
        {"word": "x"},
        1,
    )
    assert tenant.get() == "nobody"


async def test_a_host_that_fails_before_or_after_a_node_fails_the_node(
    settings: dict[str, Any], database: Database
) -> None:
    told: list[str] = []

    @contextmanager
    def around(call: NodeCall) -> Iterator[Any]:
        if call.node == "unopened":
            raise LookupError("no tenant")

        def finalise(result: Any) -> Any:
            raise RuntimeError("cannot finalise")

        try:
            yield finalise if call.node == "unfinished" else None
        except Exception:
            told.append(f"{call.node} swallowed")
            if call.node != "swallowed":
                raise

    app = declare(App("hosted", invoke_context=around, **settings))
    dag = Dag(
        "d",
        [
            node("unopened", "in_loop", args={"word": "x"}, on_failure="continue"),
            node("unfinished", "in_loop", args={"word": "x"}, on_failure="continue"),
            node("swallowed", "fail", on_failure="continue"),
            node("fine", "in_thread", args={"word": "x"}),
        ],
    )
    async with running_dags(app):
        run = await app.start(dag)
        with pytest.raises(DagRunError) as caught:
            await run.result(timeout=120)
    await app.close()
    for message in ("LookupError: no tenant", "RuntimeError: cannot finalise", "ValueError: no luck"):
        assert message in str(caught.value)
    assert sorted(caught.value.nodes) == ["swallowed", "unfinished", "unopened"], "a failure cannot be swallowed"
    assert (await database.fetchrow("SELECT FROM tidemill.job_history WHERE state = 'succeeded'")) is not None


# -- node resolver --------------------------------------------------------------------------------


async def test_a_host_finds_the_functions_of_nodes_by_their_names(settings: dict[str, Any]) -> None:
    """Nothing is declared: the names mean something to the host alone."""
    asked: list[str] = []

    def resolve(name: str) -> Any:
        asked.append(name)
        if name.startswith("broken"):
            raise ImportError("no module of this name")

        async def doubled(n: int) -> int:
            return n * 2

        def named(n: int) -> str:
            return f"{name} of {n}, attempt {current_job().attempt}"

        return {"host.doubled": doubled, "host.named": named}.get(name)

    app = App("hosted", node_resolver=resolve, **settings)
    dag = Dag(
        "d",
        [
            node("a", "host.doubled", args={"n": ref("run.n")}),
            node("b", "host.named", args={"n": ref("a")}),
            node("bad", "host.doubled", args={"m": 1}, on_failure="continue"),
        ],
        result=ref("b"),
    )
    async with app.running():
        run = await app.start(dag, n=4)
        with pytest.raises(DagRunError, match="node 'bad' failed"):
            await run.result(timeout=120)
        _, state = await run.load()
        assert state.nodes["b"].result == "host.named of 8, attempt 1"
        broken = await app.start(Dag("e", [node("a", "broken.name"), node("b", "host.doubled", args={"n": 1})]))
        with pytest.raises(DagRunError, match=r"no module of this name"):
            await broken.result(timeout=120)
        again = await app.start(Dag("f", [node("b", "host.doubled", args={"n": 1})]))
        assert await again.result(timeout=120) == {"b": 2}, "worker and run worker live on"
    await app.close()
    assert asked.count("host.doubled") <= 2


# -- workflow provider ----------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
async def test_a_host_provides_dags_by_their_names(settings: dict[str, Any], waits: bool) -> None:
    def provide(name: str) -> Any:
        if name == "nonsense":
            return {"nodes": []}
        return Dag(name, [node("a", "in_loop", args={"word": name})]) if name == "theirs" else None

    async def provide_later(name: str) -> Any:
        await asyncio.sleep(0)
        return provide(name)

    app = declare(App("hosted", workflow_provider=provide_later if waits else provide, **settings))
    app.dag(Dag("ours", [node("a", "in_loop", args={"word": "ours"})]))
    async with running_dags(app):
        for name in ("ours", "theirs"):
            assert await (await app.start(name)).result(timeout=120) == {"a": f"{name} nobody"}
        with pytest.raises(ConfigError, match=r"there is no .*'unheard'"):
            await app.start("unheard")
        with pytest.raises(ConfigError, match="nonsense"):
            await app.start("nonsense")
    await app.close()


async def test_a_run_keeps_the_definition_that_it_was_started_with(settings: dict[str, Any]) -> None:
    versions = iter(["first", "second"])

    def provide(name: str) -> Dag:
        word = next(versions)
        return Dag(name, [input_node("ask", prompt=word), node("a", "in_loop", args={"word": word}, deps=["ask"])])

    app = declare(App("hosted", workflow_provider=provide, **settings))
    async with running_dags(app):
        first = await app.start("changing")
        await reaches(first, ask="waiting")
        second = await app.start("changing")
        await reaches(second, ask="waiting")
    async with running_dags(app):
        for run, word in ((first, "first"), (second, "second")):
            await run.submit("ask", 1, by="ann")
            assert await run.result(timeout=120) == {"a": f"{word} nobody"}
    await app.close()


# -- models and refs ------------------------------------------------------------------------------


async def test_a_host_registers_models_that_nodes_require(settings: dict[str, Any]) -> None:
    asked: list[int] = []

    def register() -> list[ModelSpec]:
        asked.append(1)
        return [ModelSpec("theirs", load=lambda: "weights", memory="1MB")]

    app = App("hosted", model_registrar=register, **settings)

    @app.task
    def use(word: str) -> str:
        return f"{word} {current_job().model('theirs')}"

    async with running_dags(app):
        run = await app.start(Dag("d", [node("a", "use", args={"word": "with"}, required_model="theirs")]))
        assert await run.result(timeout=120) == {"a": "with weights"}
    await app.close()
    assert asked == [1]


async def test_a_host_brings_a_ref_language_of_its_own(settings: dict[str, Any], database: Database) -> None:
    def shout(text: str) -> str:
        return text.upper()

    app = declare(App("hosted", ref_resolver=Refs({"$shout": shout}), **settings))
    dag = Dag(
        "d",
        [
            node("a", "in_loop", args={"word": {"$shout": ref("run.word")}}),
            node("b", "in_loop", args={"word": {"$shout": ref("a")}}, skip_if={"$eq": [{"$shout": "x"}, "x"]}),
            node("c", "in_loop", args={"word": {"$shout": 5}}, on_failure="continue"),
        ],
        result={"$shout": ref("b")},
    )
    async with running_dags(app):
        run = await app.start(dag, word="hey")
        with pytest.raises(DagRunError, match=r"\$shout failed: AttributeError"):
            await run.result(timeout=120)
        assert await statuses(run) == {"a": "succeeded", "b": "succeeded", "c": "failed"}
        _, state = await run.load()
        assert state.nodes["b"].result == "HEY NOBODY nobody"
        with pytest.raises(DagError, match=r"\$whisper is not an operator"):
            await app.start(Dag("e", [node("a", "in_loop", args={"word": {"$whisper": "x"}})]))
    await app.close()
    assert await value(database, "SELECT count(*) FROM tidemill.run") == 1
