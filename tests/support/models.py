"""An application with three models and memory for one, which counts what it loads."""

from __future__ import annotations

import json
import threading
from typing import Any

from tests.support import finished, value
from tidemill import ModelSpec
from tidemill.store.database import Database

MODELS = ("a", "b", "c")


class Model:
    def __init__(self, name: str) -> None:
        self.name = name
        self.gone = False


class World:
    def __init__(self) -> None:
        self.loads: list[str] = []
        self.served: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def spec(self, name: str) -> ModelSpec:
        return ModelSpec(name, lambda: self.load(name), lambda model: setattr(model, "gone", True), 1)

    def load(self, name: str) -> Model:
        self.gate.wait(60)
        if self.broken:
            raise OSError("no such weights")
        self.loads.append(name)
        return Model(name)


async def results(database: Database, jobs: list[Any]) -> list[Any]:
    return [json.loads((await finished(database, job.id))["result"]) for job in jobs]


async def done(database: Database) -> bool:
    return await value(database, "SELECT NOT EXISTS (SELECT FROM tidemill.job)")
