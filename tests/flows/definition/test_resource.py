"""Resources: made once, shared, nested, and read from files."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ValidationError

from tidemill.flows.definition.resource import (
    FactoryResource,
    Resource,
    ResourceConfig,
    ResourceDefinition,
    ResourceManager,
    resource_definition,
)
from tidemill.flows.errors import ResourceCycleError, ResourceFileError


class Limits(BaseModel):
    low: int
    high: int = 9


def counting() -> tuple[Callable[[], int], list[int]]:
    made: list[int] = []

    def count() -> int:
        made.append(len(made) + 1)
        return made[-1]

    return count, made


def config(path: Path, document: Any, selector: str | None = None, kind: Any = Limits) -> Any:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    found = resource_definition("limits", Annotated[kind, ResourceConfig(str(path), selector)], None)
    assert found is not None
    return found.resource


async def test_a_resource_is_made_once_and_shared() -> None:
    count, made = counting()
    manager = ResourceManager()
    assert [await manager.get(Resource(count)), await manager.get(Resource(count))] == [1, 1]
    assert made == [1]
    assert list(manager.get_all().values()) == [1]


async def test_two_factories_of_one_name_do_not_share() -> None:
    manager = ResourceManager()
    first, second = counting()[0], counting()[0]
    assert first.__qualname__ == second.__qualname__
    await manager.get(Resource(first))
    await manager.get(Resource(first))
    assert await manager.get(Resource(second)) == 1


async def test_without_cache_each_call_of_a_step_gets_its_own() -> None:
    count, _ = counting()
    manager = ResourceManager()
    asked = [
        ResourceDefinition("a", Resource(count, cache=False)),
        ResourceDefinition("b", Resource(count, cache=False)),
    ]
    assert await manager.get_for_call(asked) == {"a": 1, "b": 1}
    assert await manager.get_for_call(asked) == {"a": 2, "b": 2}


async def test_concurrent_steps_wait_for_one_making() -> None:
    made = []
    release = asyncio.Event()

    async def slow() -> object:
        made.append(1)
        await release.wait()
        return object()

    manager = ResourceManager()
    tasks = [asyncio.create_task(manager.get(Resource(slow))) for _ in range(3)]
    await asyncio.sleep(0)
    release.set()
    results = await asyncio.gather(*tasks)
    assert len(made) == 1
    assert len({id(result) for result in results}) == 1


async def test_a_factory_that_fails_is_asked_again() -> None:
    calls = []

    def shaky() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("not yet")
        return "here"

    manager = ResourceManager()
    with pytest.raises(ConnectionError):
        await manager.get(Resource(shaky))
    assert await manager.get(Resource(shaky)) == "here"


def get_base() -> int:
    return 20


async def get_sum(base: Annotated[int, Resource(get_base)], more: int = 1) -> int:
    return base + more


async def test_a_factory_may_need_resources_itself() -> None:
    manager = ResourceManager()
    assert await manager.get(Resource(get_sum)) == 21
    assert manager.get_all() == {"get_base": 20, "get_sum": 21}


async def test_a_given_value_takes_the_place_of_the_factory() -> None:
    manager = ResourceManager()
    await manager.set("get_base", 100)
    assert await manager.get(Resource(get_sum)) == 101


def chicken(egg: Annotated[Any, Resource(lambda: None)]) -> Any: ...


def egg(chicken: Any) -> Any: ...


async def test_resources_that_need_each_other_are_an_error_and_not_a_hang() -> None:
    chicken.__annotations__["egg"] = Annotated[Any, Resource(egg)]
    egg.__annotations__["chicken"] = Annotated[Any, Resource(chicken)]
    manager = ResourceManager()
    both = [manager.get(Resource(chicken)), manager.get(Resource(egg))]
    for result in await asyncio.wait_for(asyncio.gather(*both, return_exceptions=True), 150):
        assert isinstance(result, ResourceCycleError)
        assert isinstance(result, ValueError)
    with pytest.raises(ResourceCycleError, match=r"chicken -> .*egg -> .*chicken"):
        await manager.get(Resource(chicken))


async def test_a_config_is_read_into_its_model(tmp_path: Path) -> None:
    manager = ResourceManager()
    whole = config(tmp_path / "a.json", {"low": 1})
    part = config(tmp_path / "b.json", {"all": {"small": {"low": 2, "high": 3}}}, "all.small")
    assert await manager.get(whole) == Limits(low=1)
    assert await manager.get(part) == Limits(low=2, high=3)


async def test_a_factory_may_need_a_config(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"low": 4}')

    def lowest(limits: Any) -> int:
        return limits.low

    lowest.__annotations__["limits"] = Annotated[Limits, ResourceConfig(str(path))]
    assert await ResourceManager().get(Resource(lowest)) == 4


@pytest.mark.parametrize(
    ("document", "selector", "kind", "told"),
    [
        ("not json", None, Limits, "not valid JSON"),
        ({"a": 1}, "a", Limits, "Expected dictionary .* got: 1"),
        ({"a": {}}, "a.b", Limits, "Expected dictionary .* got: None"),
        ({"low": 1}, None, dict, "not a pydantic model"),
    ],
)
def test_a_bad_config_says_what_is_wrong(
    tmp_path: Path, document: Any, selector: str | None, kind: Any, told: str
) -> None:
    with pytest.raises(ResourceFileError, match=told):
        config(tmp_path / "a.json", document, selector, kind).load()


def test_a_config_that_does_not_fit_its_model_is_a_validation_error(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="low"):
        config(tmp_path / "a.json", {}).load()


def test_a_missing_or_foreign_file_is_an_error() -> None:
    with pytest.raises(ResourceFileError, match="Only JSON"):
        ResourceConfig("limits.yaml")
    found = resource_definition("x", Annotated[Limits, ResourceConfig("/nowhere/x.json")], None)
    assert found is not None
    with pytest.raises(ResourceFileError, match="cannot be read"):
        found.resource.load()
    with pytest.raises(FileNotFoundError, match=r"No such file: /nowhere/x\.json"):
        found.resource.load()


async def test_names_around_a_step_do_not_hide_those_of_a_factory() -> None:
    def lowest(limits: Annotated[Limits, Resource(lambda: Limits(low=6))]) -> int:
        return limits.low

    lowest.__annotations__["limits"] = "Annotated[Limits, Resource(given)]"
    around = {"Annotated": None, "Limits": str, "given": lambda: Limits(low=7)}
    found = resource_definition("n", Annotated[int, Resource(lowest)], around)
    assert found is not None
    assert await ResourceManager().get(found.resource) == 7


def test_a_parameter_without_a_resource_asks_for_none() -> None:
    assert resource_definition("x", int, None) is None
    assert resource_definition("x", Annotated[int, "words"], None) is None
    asked = resource_definition("x", Annotated[int, Resource(get_base)], None)
    assert asked is not None
    assert isinstance(asked.resource, FactoryResource)
    assert (asked.name, asked.type_annotation, asked.resource.name) == ("x", int, "get_base")
