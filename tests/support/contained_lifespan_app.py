"""An application whose lifespan misbehaves as `TIDEMILL_MISBEHAVIOUR` says."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.containment.misbehave import misbehave_async
from tidemill import App

HOW = os.environ.get("TIDEMILL_MISBEHAVIOUR", "")


@asynccontextmanager
async def lifespan(app: App) -> AsyncIterator[None]:
    await misbehave_async(HOW)
    yield


app = App("lifespan", lifespan=lifespan)
app.declarations.lifespan.start_seconds = 3.0


@app.task(queue=HOW or "default")
async def job() -> None: ...
