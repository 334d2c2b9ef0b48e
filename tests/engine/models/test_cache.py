"""The warm models of a worker process: loaded once, shared by threads and coroutines, never taken from a user."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.support import eventually
from tests.support.waiting import PATIENCE
from tidemill.core.clock import VirtualClock
from tidemill.core.errors import ConfigError
from tidemill.engine.models.cache import ModelCache, ModelUse
from tidemill.engine.models.spec import ModelError, ModelSpec, gpu_max_concurrency


class Model:
    """Something that can be told from its likes, and knows whether it has been unloaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = False


class World:
    """Where models are loaded: counts them, and knows how many are there at once."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.there = 0
        self.most = 0
        self.lock = threading.Lock()

    def load(self, name: str) -> Callable[[], Model]:
        def load() -> Model:
            with self.lock:
                self.loads.append(name)
                self.there += 1
                self.most = max(self.most, self.there)
            return Model(name)

        return load

    def unload(self, model: Model) -> None:
        model.gone = True
        with self.lock:
            self.unloads.append(model.name)
            self.there -= 1

    def spec(self, name: str, memory: int = 1, **more: Any) -> ModelSpec:
        return ModelSpec(name, self.load(name), self.unload, memory, **more)


@asynccontextmanager
async def started(*specs: ModelSpec, budget: int | None = None, **more: Any) -> AsyncIterator[ModelCache]:
    cache = ModelCache(specs, budget=budget, **more)
    cache.start()
    yield cache
    await cache.close()


def figures(cache: ModelCache, name: str) -> dict[str, Any]:
    [one] = [each for each in cache.figures() if each.name == name]
    return {field: getattr(one, field) for field in one.__struct_fields__}


# Getting a model


async def test_ten_jobs_in_threads_and_coroutines_load_once() -> None:
    world, gate, asked = World(), threading.Event(), []

    def slow() -> Model:
        gate.wait(PATIENCE)
        return world.load("a")()

    async with started(ModelSpec("a", slow, world.unload)) as cache:
        uses = [cache.use() for _ in range(10)]
        asked = [
            asyncio.ensure_future(use.load("a") if index % 2 else asyncio.to_thread(use.get, "a"))
            for index, use in enumerate(uses)
        ]
        await eventually(lambda: len(cache._eviction.standings["a"].waiting) == 10 if cache.warm() else False)
        gate.set()
        models = await asyncio.gather(*asked)
        assert world.loads == ["a"]
        assert len({id(model) for model in models}) == 1
        assert figures(cache, "a")["users"] == 10
        for use in uses:
            use.close()
        assert (figures(cache, "a")["loads"], figures(cache, "a")["users"]) == (1, 0)


async def test_a_load_may_be_async_and_runs_on_the_workers_loop() -> None:
    seen: list[Any] = []

    async def load() -> str:
        seen.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        return "model"

    async def unload(model: str) -> None:
        seen.append(model)

    async with started(ModelSpec("a", load, unload), ModelSpec("b", lambda: load())) as cache:
        use = cache.use()
        assert (await use.load("a"), await use.load("b")) == ("model", "model")
        use.close()
    assert seen == [asyncio.get_running_loop()] * 2 + ["model"]


async def test_a_failed_load_is_told_to_all_who_wait_and_tried_again_by_the_next() -> None:
    tries, gate = [], threading.Event()

    def load() -> str:
        tries.append(1)
        gate.wait(PATIENCE)
        if len(tries) == 1:
            raise OSError("the disk is gone")
        return "model"

    async with started(ModelSpec("a", load)) as cache:
        uses = [cache.use() for _ in range(3)]
        asked = [asyncio.ensure_future(use.load("a")) for use in uses]
        await eventually(lambda: len(tries) == 1)
        gate.set()
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in errors] == [ModelError] * 3
        assert len({id(error) for error in errors}) == 3
        assert "model a could not be loaded: OSError: the disk is gone" in str(errors[0])
        assert isinstance(errors[0], ModelError)
        assert isinstance(errors[0].__cause__, OSError)
        assert await uses[0].load("a") == "model"
        assert (figures(cache, "a")["failures"], figures(cache, "a")["loads"]) == (1, 1)


async def test_a_load_that_ends_its_thread_is_a_failure_like_any_other() -> None:
    def load() -> None:
        raise SystemExit(3)

    async with started(ModelSpec("a", load)) as cache:
        with pytest.raises(ModelError, match="SystemExit: 3"):
            await cache.use().load("a")


async def test_a_job_that_stops_waiting_leaves_the_load_to_others() -> None:
    world, gate = World(), threading.Event()

    def slow() -> Model:
        gate.wait(PATIENCE)
        return world.load("a")()

    async with started(ModelSpec("a", slow, world.unload)) as cache:
        gone, stays = cache.use(), cache.use()
        waiting = asyncio.ensure_future(gone.load("a"))
        other = asyncio.ensure_future(stays.load("a"))
        await eventually(cache.warm)
        waiting.cancel()
        gone.close()
        gate.set()
        assert (await other).name == "a"
        assert waiting.cancelled()
        assert figures(cache, "a")["users"] == 1


async def test_asking_on_the_loop_without_waiting_says_what_to_write_instead() -> None:
    async with started(World().spec("a")) as cache:
        use = cache.use()
        with pytest.raises(ConfigError, match=r"await current_job\(\).load_model\('a'\)"):
            use.get("a")
        loaded = await use.load("a")
        assert use.get("a") is loaded


async def test_a_thread_that_waits_looks_up_now_and_then() -> None:
    gate = threading.Event()

    def look_up() -> None:
        raise RuntimeError("cancelled meanwhile")

    async with started(ModelSpec("a", lambda: gate.wait(PATIENCE))) as cache:
        use = cache.use()
        with pytest.raises(RuntimeError, match="cancelled meanwhile"):
            await asyncio.to_thread(use.get, "a", look_up=look_up)
        gate.set()


async def test_a_model_that_nobody_declared_is_an_error_that_names_those_there_are() -> None:
    async with started(World().spec("a"), World().spec("b")) as cache:
        with pytest.raises(ConfigError, match=r"there is no model 'c'; this application declares: a, b"):
            await cache.use().load("c")


async def test_an_ended_job_gets_no_model_any_more() -> None:
    async with started(World().spec("a")) as cache:
        use = cache.use()
        use.close()
        with pytest.raises(ModelError, match="its job has ended"):
            await use.load("a")


# Memory


async def test_memory_for_one_keeps_one_and_counts_evictions() -> None:
    world = World()
    async with started(world.spec("a"), world.spec("b"), budget=1) as cache:
        for name in ("a", "a", "b", "a"):
            use = cache.use()
            assert (await use.load(name)).name == name
            use.close()
        assert world.loads == ["a", "b", "a"]
        assert (world.unloads, world.most) == (["a", "b"], 1)
        assert figures(cache, "a")["hits"] == 1
        assert figures(cache, "a")["evictions"] == 1
        assert cache.taken == 1
    assert world.there == 0


async def test_a_model_without_unload_is_freed_before_the_next_is_loaded() -> None:
    refs: list[weakref.ref[Model]] = []
    alive_at_load: list[int] = []

    def load() -> Model:
        alive_at_load.append(sum(ref() is not None for ref in refs))
        model = Model("x")
        model.itself = model  # type: ignore[attr-defined] # a cycle, as real models have
        refs.append(weakref.ref(model))
        return model

    gc.disable()
    try:
        async with started(ModelSpec("a", load, memory=1), ModelSpec("b", load, memory=1), budget=1) as cache:
            for name in ("a", "b", "a"):
                use = cache.use()
                await use.load(name)
                use.close()
    finally:
        gc.enable()
    assert alive_at_load == [0, 0, 0]


async def test_a_model_in_use_waits_for_its_user_and_not_the_other_way_round() -> None:
    world = World()
    async with started(world.spec("a"), world.spec("b"), budget=1) as cache:
        first, second = cache.use(), cache.use()
        model = await first.load("a")
        waiting = asyncio.ensure_future(second.load("b"))
        await asyncio.sleep(0)
        assert (model.gone, waiting.done()) == (False, False)
        first.close()
        assert (await waiting).name == "b"
        assert model.gone


async def test_an_unload_that_fails_does_not_stop_the_next_load() -> None:
    def unload(_: object) -> None:
        raise RuntimeError("stuck")

    async with started(ModelSpec("a", object, unload, 1), ModelSpec("b", object, unload, 1), budget=1) as cache:
        for name in ("a", "b"):
            use = cache.use()
            await use.load(name)
            use.close()
        assert cache.warm() == ["b"]


def test_a_model_larger_than_the_budget_is_refused_when_it_is_declared() -> None:
    with pytest.raises(ConfigError, match=r"model big needs 3 GB, which the models' budget of 2 GB does not hold"):
        ModelCache([ModelSpec("big", object, memory="3 GB")], budget=2 * 10**9)


def test_a_model_that_does_not_fit_beside_the_pinned_ones_is_refused_too() -> None:
    with pytest.raises(ConfigError, match="beside the pinned base"):
        ModelCache([ModelSpec("base", object, memory=6, pinned=True), ModelSpec("big", object, memory=6)], budget=10)


async def test_pinned_models_are_loaded_at_the_start_and_idle_ones_go() -> None:
    world, clock = World(), VirtualClock()
    async with started(world.spec("base", pinned=True), world.spec("a", idle="1m"), clock=clock) as cache:
        await eventually(lambda: figures(cache, "base")["phase"] == "loaded")
        use = cache.use()
        await use.load("a")
        clock.advance(600)
        cache.rest()
        assert sorted(cache.warm()) == ["a", "base"]
        use.close()
        clock.advance(61)
        cache.rest()
        await eventually(lambda: world.unloads == ["a"])
        assert cache.warm() == ["base"]
        assert figures(cache, "a")["idle_unloads"] == 1


@pytest.mark.parametrize("seed", range(5))
async def test_no_job_ever_uses_a_model_after_its_unload_and_memory_stays_within_its_bounds(seed: int) -> None:
    chance, world = random.Random(seed), World()
    specs = [world.spec(name) for name in "abcd"]

    def in_thread(use: ModelUse, name: str) -> bool:
        try:
            model = use.get(name)
            return not model.gone and model.name == name
        finally:
            use.close()

    async def on_loop(use: ModelUse, name: str, turns: int) -> bool:
        try:
            model = await use.load(name)
            for _ in range(turns):
                await asyncio.sleep(0)
                if model.gone:
                    return False
            return True
        finally:
            use.close()

    async with started(*specs, budget=2) as cache:
        jobs = []
        for _ in range(60):
            use, name = cache.use(), chance.choice("abcd")
            if chance.random() < 0.5:
                jobs.append(asyncio.ensure_future(asyncio.to_thread(in_thread, use, name)))
            else:
                jobs.append(asyncio.ensure_future(on_loop(use, name, chance.randrange(5))))
            if chance.random() < 0.1:
                chance.choice(jobs).cancel()
            await asyncio.sleep(0)
        ended = await asyncio.gather(*jobs, return_exceptions=True)
    assert all(end is True or isinstance(end, asyncio.CancelledError) for end in ended)
    assert sum(end is True for end in ended) > 20
    assert world.most <= 2
    assert world.there == 0


# Declaring


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"name": " x"}, "not a model name"),
        ({"load": "minilm"}, "is not a function that returns the model"),
        ({"unload": 3}, "is not a function that takes the model"),
        ({"memory": "much"}, "is not an amount of memory"),
        ({"idle": "soon"}, "idle time of model a"),
    ],
)
def test_nonsense_in_a_declaration_is_told(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ModelSpec(**{"name": "a", "load": object, **wrong})


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two models are called 'a'"):
        ModelCache([ModelSpec("a", object), ModelSpec("a", object)])


def test_a_worker_for_models_on_a_gpu_runs_one_job_at_a_time() -> None:
    models = {"cpu": ModelSpec("cpu", object), "gpu": ModelSpec("gpu", object, gpu=True)}
    assert gpu_max_concurrency(models, [None, "gpu"]) == 1
    assert gpu_max_concurrency(models, [None, "cpu", "elsewhere"]) is None


async def test_a_load_that_takes_too_long_has_failed_and_what_it_returns_later_is_dropped() -> None:
    may_end, loads = threading.Event(), list[int]()

    def load() -> int:
        loads.append(len(loads) + 1)
        if len(loads) == 1:
            may_end.wait(PATIENCE)
        return loads[-1]

    async with started(ModelSpec("slow", load, load_timeout=0.05)) as cache:
        use = cache.use()
        with pytest.raises(ModelError, match=r"slow could not be loaded: TimeoutError: it took longer than 50ms"):
            await use.load("slow")
        assert await use.load("slow") == 2, "another request tries again"
        may_end.set()
        await eventually(lambda: not any(each.name == "tidemill-load-slow" for each in threading.enumerate()))
        assert await use.load("slow") == 2
        use.close()
