"""Hosts: what each uses now and has used, and the processes of ours; `/metrics` for Prometheus."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, get
from litestar.params import FromPath, QueryParameter

from tidemill.core.codec import decode
from tidemill.server.server_state import TheDesk
from tidemill.store.telemetry.hosts import list_hosts, read_samples


class Host(msgspec.Struct, frozen=True):
    """A host and its newest sample: sizes in bytes, CPU in cores."""

    name: str
    at: datetime
    age: float
    sample: dict[str, Any]


class Hosts(msgspec.Struct, frozen=True):
    items: list[Host]


class Sample(msgspec.Struct, frozen=True):
    at: datetime
    sample: dict[str, Any]


class Samples(msgspec.Struct, frozen=True):
    """How a host has fared, oldest first."""

    host: str
    items: list[Sample]


@get("/hosts", opt={"scope": "read"}, summary="List hosts")
async def get_hosts(
    desk: TheDesk,
    within: Annotated[float, QueryParameter(gt=0, le=86_400, description="Heard of in the last seconds.")] = 60.0,
) -> Hosts:
    """Hosts that were heard of lately, each with its newest sample."""
    rows = await list_hosts(desk.database, within=within)
    return Hosts([Host(row["host"], row["at"], row["age"], decode(row["data"])) for row in rows])


@get("/hosts/{name:str}/samples", opt={"scope": "read"}, summary="A host over time")
async def get_samples(
    desk: TheDesk,
    name: FromPath[str],
    within: Annotated[float, QueryParameter(gt=0, le=86_400, description="How far back, in seconds.")] = 3600.0,
    every: Annotated[float, QueryParameter(ge=1, le=3600, description="At most one sample in so many seconds.")] = 15.0,
) -> Samples:
    """Samples of a host, for charts. They are kept for a day."""
    rows = await read_samples(desk.database, name, within=within, every=max(every, within / 2000))
    return Samples(name, [Sample(row["at"], decode(row["data"])) for row in rows])


@get("/metrics", opt={"scope": "read"}, summary="Metrics for Prometheus", media_type="text/plain")
async def get_metrics(desk: TheDesk, request: Request[Any, Any, Any]) -> Response[bytes]:
    """Everything that is counted, in the form that Prometheus reads."""
    body, kind = await desk.metrics.text(request.headers.get("accept", ""))
    return Response(body, media_type=kind)


routes = [get_hosts, get_samples, get_metrics]
