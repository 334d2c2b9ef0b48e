"""Resources in runs: made once, shared, or made for each call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel

from tidemill.flows import Workflow, catch_error, step
from tidemill.flows.definition.events import Event, StartEvent, StepFailedEvent, StopEvent
from tidemill.flows.definition.resource import Resource, ResourceConfig, ResourceManager
from tidemill.flows.errors import WorkflowValidationError

made: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_made() -> None:
    made.clear()


class Client:
    pass


def get_client() -> Client:
    made.append("client")
    return Client()


async def get_service(client: Annotated[Client, Resource(get_client)]) -> tuple[str, Client]:
    made.append("service")
    return "service", client


def get_broken() -> Client:
    raise ConnectionError("no database")


class Draft(Event):
    first: Any


class Shared(Workflow):
    @step
    async def one(self, ev: StartEvent, client: Annotated[Client, Resource(get_client)]) -> Draft:
        return Draft(first=client)

    @step
    async def two(self, ev: Draft, service: Annotated[Any, Resource(get_service)]) -> StopEvent:
        return StopEvent(result=(ev.first, service[1]))


async def test_a_resource_is_made_once_and_shared_by_steps_factories_and_runs() -> None:
    flow = Shared()
    first, second = await flow.run()
    assert first is second
    assert (await flow.run())[0] is first
    assert made == ["client", "service"]


async def test_another_workflow_has_its_own_resources_unless_they_share_a_manager() -> None:
    manager = ResourceManager()
    one, two = Shared(resource_manager=manager), Shared(resource_manager=manager)
    assert (await one.run())[0] is (await two.run())[0]
    assert (await Shared().run())[0] is not (await one.run())[0]


async def test_a_resource_without_cache_is_made_for_each_call() -> None:
    class Fresh(Workflow):
        @step
        async def work(
            self,
            ev: StartEvent,
            a: Annotated[Client, Resource(get_client, cache=False)],
            b: Annotated[Client, Resource(get_client, cache=False)],
        ) -> StopEvent:
            return StopEvent(result=(a, b))

    flow = Fresh()
    a, b = await flow.run()
    assert a is b
    assert (await flow.run())[0] is not a


async def test_a_factory_that_fails_fails_the_step() -> None:
    class Broken(Workflow):
        @step
        async def work(self, ev: StartEvent, client: Annotated[Client, Resource(get_broken)]) -> StopEvent:
            return StopEvent()

    class Caught(Broken):
        @catch_error
        async def rescue(self, ev: StepFailedEvent) -> StopEvent:
            return StopEvent(result=ev.step_name)

    with pytest.raises(ConnectionError):
        await Broken().run()
    assert await Caught().run() == "work"


async def test_a_config_is_read_from_its_file_and_checked_before_the_run(tmp_path: Path) -> None:
    class Limits(BaseModel):
        most: int

    file = tmp_path / "limits.json"
    file.write_text(json.dumps({"small": {"most": 3}}))

    class Limited(Workflow):
        @step
        async def work(
            self, ev: StartEvent, limits: Annotated[Limits, ResourceConfig(str(file), "small")]
        ) -> StopEvent:
            return StopEvent(result=limits.most)

    assert await Limited().run() == 3
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"most": "many"}))

    class Unlimited(Workflow):
        @step
        async def work(self, ev: StartEvent, limits: Annotated[Limits, ResourceConfig(str(wrong))]) -> StopEvent:
            return StopEvent(result=limits.most)

    with pytest.raises(WorkflowValidationError):
        Unlimited().run()
