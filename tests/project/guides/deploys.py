"""What docs/deploys.md takes for granted: the event that begins an order, and its state."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from tidemill.flows import OlderRun, StartEvent


class Placed(StartEvent):
    euros: float = 0.0


class Amount(BaseModel):
    cents: int = 0


async def after(names: dict[str, Any]) -> None:
    older = OlderRun(version="before", state={"euros": 12.5}, events=[])
    assert names["Order"]().to_cents(older).state == {"cents": 1250}
