"""An application with models on the fresh database."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.models import MODELS, World
from tests.support.waiting import PATIENT
from tidemill import App, current_job


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def make_app(database_url: str, world: World) -> Callable[..., App]:
    """An application with three models and memory for one."""

    def make(*, models: bool = True, **settings: Any) -> App:
        made: dict[str, Any] = {"model_memory": 1, **settings}
        app = App(
            "models",
            models=[world.spec(name) for name in MODELS] if models else [],
            database_url=database_url,
            **PATIENT,
            grace_seconds=5,
            **made,
        )

        @app.task(required_model="a")
        async def serve() -> str:
            model = current_job().model("a")
            world.served.append(model.name)
            return model.name

        @app.task
        async def answer(model: str) -> str:
            return (await current_job().load_model(model)).name

        @app.task
        def answer_plainly(model: str) -> str:
            return current_job().model(model).name

        @app.task
        async def other() -> str:
            world.served.append("none")
            return "no model"

        return app

    return make
